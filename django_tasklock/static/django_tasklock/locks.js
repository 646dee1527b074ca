/* Counts TTLs down and ages up, and keeps the list up to date. Without this file the page shows
   what was true when it was drawn. */
"use strict";
{
    const PAUSE_KEY = "tasklock-every";
    const MINUTE = 60, HOUR = 3600, DAY = 86400;

    // The same words as duration() on the server.
    function duration(seconds) {
        const two = (number) => String(number).padStart(2, "0");
        const left = Math.max(0, seconds);
        const whole = Math.floor(left);
        if (left < 1) {
            return `${(Math.floor(left * 10) / 10).toFixed(1)}s`;
        }
        if (whole < MINUTE) {
            return `${whole}s`;
        }
        if (whole < HOUR) {
            return `${Math.floor(whole / MINUTE)}m${two(whole % MINUTE)}s`;
        }
        if (whole < DAY) {
            return `${Math.floor(whole / HOUR)}h${two(Math.floor(whole % HOUR / MINUTE))}m`;
        }
        return `${Math.floor(whole / DAY)}d${two(Math.floor(whole % DAY / HOUR))}h`;
    }

    // The numbers are from the moment the answer began to arrive, not when this script ran.
    const [navigation] = performance.getEntriesByType("navigation");
    let drawn = navigation ? navigation.responseStart : performance.now();
    // The moment of the last answer of all stores: that of the rows that are grey.
    let whole = drawn;

    // Nothing is counted in a grey row: nobody knows whether its lease goes on.
    const STALE = "tasklock-stale";
    const isStale = (cell) => cell.closest(`.${STALE}`) !== null;

    function tick() {
        const now = performance.now(), passed = (now - drawn) / 1000;
        for (const ago of document.querySelectorAll("[data-tasklock-ago]")) {
            ago.textContent = ago.dataset.tasklockAgo.replace("@", duration((now - whole) / 1000));
            ago.hidden = false;
        }
        for (const cell of document.querySelectorAll("[data-tasklock-ttl]")) {
            if (isStale(cell)) {
                continue;
            }
            const left = Number(cell.dataset.tasklockTtl) - passed;
            cell.textContent = left > 0 ? duration(left) : cell.dataset.tasklockOver;
            cell.classList.toggle("tasklock-over", left <= 0);
            const bar = cell.nextElementSibling;
            if (bar && bar.matches(".tasklock-bar")) {
                bar.value = Math.max(0, left);
            }
        }
        for (const cell of document.querySelectorAll("[data-tasklock-age]")) {
            if (isStale(cell)) {
                continue;
            }
            cell.textContent = duration(Number(cell.dataset.tasklockAge) + passed);
        }
    }

    const rowsOf = () => [...document.querySelectorAll("#result_list tbody tr")];
    const idOf = (row) => row.querySelector("[data-tasklock-row]")?.dataset.tasklockRow;
    // An id is made by identity() on the server: a digest, the store, the lock's name.
    const storeOf = (row) => idOf(row)?.split(" ")[1]?.split(":")[0];

    // Greys a row, which shows then what the last answer said of it.
    function grey(row) {
        if (row.classList.contains(STALE)) {
            return;
        }
        row.classList.add(STALE);
        for (const cell of row.querySelectorAll("[data-tasklock-ttl]")) {
            cell.textContent = duration(Number(cell.dataset.tasklockTtl));
            cell.classList.remove("tasklock-over");
        }
        for (const cell of row.querySelectorAll("[data-tasklock-age]")) {
            cell.textContent = duration(Number(cell.dataset.tasklockAge));
        }
    }

    const boxes = () => [...document.querySelectorAll("#result_list input.action-select")];

    // A row that was there before stays in the document, so that its link keeps the focus, and its
    // text the selection.
    function update(row, said) {
        const table = document.createElement("table");
        table.innerHTML = `<tbody><tr>${said.cells.join("")}</tr></tbody>`;
        const cells = [...table.rows[0].cells];
        if (row.cells.length !== cells.length) {
            row.replaceChildren(...cells);
            return;
        }
        cells.forEach((cell, at) => {
            const old = row.cells[at];
            if (!cell.classList.contains("action-checkbox") && old.innerHTML !== cell.innerHTML
                    && !(old.querySelector("a") && old.textContent === cell.textContent)) {
                old.replaceChildren(...cell.childNodes);
            }
        });
    }

    // A theme may draw a body for each row, and give rows and cells classes of its own: new rows
    // look like the first one that the page came with.
    let model = null, bodyEach = false;

    function remember() {
        const bodies = document.querySelectorAll("#result_list > tbody");
        model = bodies[0]?.rows[0]?.cloneNode(true);
        bodyEach = bodies.length > 1 || Boolean(bodies[0]?.hasAttribute("x-data"));
        if (bodyEach) {
            const body = bodies[0].cloneNode(false);
            body.append(model);
        }
    }

    function newRow(said) {
        const row = document.createElement("tr");
        update(row, said);
        if (!model) {
            return row;
        }
        row.className = model.className;
        row.classList.remove("selected", STALE);
        [...row.cells].forEach((cell, at) => {
            for (const {name, value} of model.cells[at]?.attributes || []) {
                cell.setAttribute(name, value);
            }
        });
        if (bodyEach) {
            model.parentElement.cloneNode(false).append(row);
        }
        return row;
    }

    // Each theme has a paginator of its own.
    function paginate(html) {
        const holder = document.createElement("div");
        holder.innerHTML = html;
        const classes = [...holder.children].map((each) => each.className).filter(Boolean);
        const alike = [...document.querySelectorAll(".tasklock-pages *")].filter((each) =>
            each.classList.contains("paginator") || classes.includes(each.className));
        const pages = alike.filter((each) =>
            !alike.some((other) => other !== each && other.contains(each)));
        const said = pages.map((each) => each.textContent.trim()).join("\n");
        const says = [...holder.children].map((each) => each.textContent.trim()).join("\n");
        if (pages.length && said !== says) {
            pages.slice(1).forEach((each) => each.remove());
            pages[0].replaceWith(...holder.childNodes);
        }
    }

    // The line with the time that the rows are from.
    function sayTime(html) {
        const holder = document.createElement("div");
        holder.innerHTML = html;
        document.querySelector("[data-tasklock-time]").textContent =
            holder.querySelector("[data-tasklock-time]").textContent;
        whole = drawn;
    }

    function show(answer) {
        const problems = document.getElementById("tasklock-problems");
        const sentences = answer.problems.map((problem) => {
            const item = document.createElement("li");
            item.className = "error";
            item.setAttribute("role", "alert");
            item.textContent = problem;
            return item;
        });
        const said = [...problems.children].map((item) => item.textContent).join("\n");
        if (said !== answer.problems.join("\n")) {
            problems.replaceChildren(...sentences);
        }
        const summary = document.getElementById("tasklock-summary");
        if (summary && answer.summary) {
            const focused = summary.contains(document.activeElement);
            summary.innerHTML = answer.summary;
            if (focused) {
                summary.querySelector("a")?.focus();
            }
        }
        if (answer.gone) {  // the list has fewer pages now
            const first = new URLSearchParams(location.search);
            first.delete("p");
            location.assign(`${location.pathname}?${first}`);
            return;
        }
        if (!answer.rows) {
            rowsOf().forEach(grey);
            return;
        }
        if (answer.pagination) {
            paginate(answer.pagination);
        }
        const table = document.getElementById("result_list");
        if (!table && !answer.rows.length) {
            return;
        }
        if (!table) {  // the page was made without one
            location.reload();
            return;
        }
        const old = new Map(rowsOf().map((row) => [idOf(row), row]));
        const rows = answer.rows.map((said) => {
            const row = old.get(said.id);
            if (row) {
                row.classList.remove(STALE);
                update(row, said);
            }
            return row || newRow(said);
        });
        // Of a store that does not answer nothing is known: its rows stay.
        const kept = rowsOf().filter((row) => answer.silent.includes(storeOf(row)));
        kept.forEach(grey);
        rows.push(...kept.filter((row) => !rows.includes(row)));
        const placed = (row) => bodyEach ? row.parentElement : row;
        rowsOf().filter((row) => !rows.includes(row)).forEach((row) => placed(row).remove());
        const among = bodyEach ? table : table.tBodies[0];
        const there = () => bodyEach ? table.tBodies : among.rows;
        rows.map(placed).forEach((item, at) => {
            if (there()[at] !== item) {
                among.insertBefore(item, there()[at] || null);
            }
        });
        const counter = document.querySelector(".action-counter");
        if (counter) {
            counter.dataset.actionsIcnt = rows.length;
            count();
        }
    }

    // The admin's own script counts the boxes that were there when it started.
    function count() {
        const all = boxes(), ticked = all.filter((box) => box.checked).length;
        const counter = document.querySelector(".action-counter");
        const toggle = document.getElementById("action-toggle");
        if (counter && typeof interpolate === "function") {
            counter.textContent = interpolate(
                ngettext("%(sel)s of %(cnt)s selected", "%(sel)s of %(cnt)s selected", ticked),
                {sel: ticked, cnt: all.length}, true
            );
        }
        if (toggle) {
            toggle.checked = ticked > 0 && ticked === all.length;
            for (const question of document.querySelectorAll(".actions .question")) {
                question.classList.toggle("hidden", !toggle.checked);
            }
        }
    }

    function keepUpToDate(live) {
        const words = live.querySelector("span"), link = live.querySelector("a");
        const button = live.querySelector("button");
        const asOf = document.getElementById("tasklock-as-of");
        const choice = document.getElementById("tasklock-every");
        let stopped = false, asking = false, asked = 0, timer;
        let trouble = "";  // the name of the words for it; none while all is well

        // What the reader chose is kept in this browser, if it keeps anything.
        function chosen() {
            try {
                return localStorage.getItem(PAUSE_KEY);
            } catch {
                return null;
            }
        }

        function keepTime() {
            clearInterval(timer);
            stopped = choice.value === "off";
            if (!stopped) {
                timer = setInterval(look, Number(choice.value) * 1000);
            }
            say();
        }

        function choose(value) {
            choice.value = value;
            try {
                localStorage.setItem(PAUSE_KEY, value);
            } catch {}  // It counts until the page is left.
            keepTime();
        }

        function say() {
            const ticked = boxes().some((box) => box.checked);
            const state = trouble === "ended" ? trouble : stopped ? "paused"
                : ticked ? "ticked" : trouble || "running";
            const text = live.dataset[state];
            if (words.textContent !== text) {
                words.textContent = text;
            }
            button.textContent = stopped ? live.dataset.resume : live.dataset.pause;
            link.hidden = state !== "ended";
            asOf.hidden = state === "running";
            return stopped || ticked || document.hidden;
        }

        // Nothing is known any more of what the page shows.
        function fail(why) {
            trouble = why;
            rowsOf().forEach(grey);
            say();
        }

        async function look() {
            if (asking && performance.now() - asked > 2000 * Number(choice.value)) {
                fail("failed");
            }
            if (say() || asking) {
                return;
            }
            asking = true;
            asked = performance.now();
            try {
                const response = await fetch(live.dataset.url + location.search, {
                    headers: {Accept: "application/json"},
                    redirect: "manual",  // it leads to the login, whose page is no answer
                    signal: AbortSignal.timeout(30000),
                });
                if (response.type === "opaqueredirect") {
                    fail("ended");
                    return;
                }
                if (!response.ok) {
                    fail(response.status === 403 ? "refused" : "failed");
                    return;
                }
                const answer = await response.json();
                const silent = !answer.gone && (!answer.rows || answer.silent.length > 0);
                trouble = silent ? "silent" : "";
                if (!say()) {
                    drawn = (asked + performance.now()) / 2;
                    show(answer);
                    if (!silent && answer.as_of) {
                        sayTime(answer.as_of);
                    }
                    tick();
                }
            } catch {
                fail("failed");
            } finally {
                asking = false;
                say();
            }
        }

        link.search = new URLSearchParams({next: location.pathname + location.search});
        button.addEventListener("click", () => {
            if (choice.value === "off") {
                choose(live.dataset.every);
            } else {
                stopped = !stopped;
                say();
            }
            look();
        });
        choice.addEventListener("change", () => {
            choose(choice.value);
            look();
        });
        document.addEventListener("visibilitychange", look);
        document.addEventListener("change", (event) => {
            if (event.target.id === "action-toggle") {
                const {checked} = event.target;
                for (const box of boxes()) {
                    box.checked = checked;
                    box.closest("tr").classList.toggle("selected", checked);
                }
            }
            if (event.target.matches("#action-toggle, input.action-select")) {
                count();
                say();
            }
        });
        choice.value = chosen();
        if (!choice.value) {  // nothing, or what this page does not offer
            choice.value = live.dataset.every;
        }
        keepTime();
        live.hidden = false;
    }

    document.addEventListener("DOMContentLoaded", () => {
        remember();
        tick();
        setInterval(tick, 250);
        const live = document.getElementById("tasklock-live");
        if (live) {
            keepUpToDate(live);
        }
    });
}
