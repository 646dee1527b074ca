/* Counts TTLs down and ages up, and keeps the list up to date. Without this file the page shows
   what was true when it was drawn. */
"use strict";
{
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

    function tick() {
        const passed = (performance.now() - drawn) / 1000;
        for (const cell of document.querySelectorAll("[data-tasklock-ttl]")) {
            const left = Number(cell.dataset.tasklockTtl) - passed;
            cell.textContent = left > 0 ? duration(left) : cell.dataset.tasklockOver;
            cell.classList.toggle("tasklock-over", left <= 0);
            const bar = cell.nextElementSibling;
            if (bar && bar.matches(".tasklock-bar")) {
                bar.value = Math.max(0, left);
            }
        }
        for (const cell of document.querySelectorAll("[data-tasklock-age]")) {
            cell.textContent = duration(Number(cell.dataset.tasklockAge) + passed);
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
            if (!old.classList.contains("action-checkbox") && old.innerHTML !== cell.innerHTML
                    && !(old.querySelector("a") && old.textContent === cell.textContent)) {
                old.replaceChildren(...cell.childNodes);
            }
        });
    }

    function newRow(said) {
        const row = document.createElement("tr");
        update(row, said);
        return row;
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
        if (answer.gone) {  // the list has fewer pages now
            location.assign(location.pathname);
            return;
        }
        const body = document.querySelector("#result_list tbody");
        if (!answer.rows || (!body && !answer.rows.length)) {
            return;
        }
        if (!body) {  // the page was made without a table
            location.reload();
            return;
        }
        const old = new Map([...body.rows].map((row) => [
            row.querySelector("[data-tasklock-row]")?.dataset.tasklockRow, row,
        ]));
        const rows = answer.rows.map((said) => {
            const row = old.get(said.id);
            if (row) {
                update(row, said);
            }
            return row || newRow(said);
        });
        [...body.rows].filter((row) => !rows.includes(row)).forEach((row) => row.remove());
        rows.forEach((row, at) => {
            if (body.rows[at] !== row) {
                body.insertBefore(row, body.rows[at] || null);
            }
        });
        const paginator = document.querySelector("#changelist-form .paginator");
        if (paginator && answer.pagination) {
            const holder = document.createElement("div");
            holder.innerHTML = answer.pagination;
            if (paginator.textContent.trim() !== holder.textContent.trim()) {
                paginator.replaceWith(...holder.childNodes);
            }
        }
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
        const [words, button] = live.children;
        const every = Number(live.dataset.every) * 1000;
        let stopped = false, failed = false, asking = false;

        function say() {
            const ticked = boxes().some((box) => box.checked);
            const text = stopped ? live.dataset.paused : ticked ? live.dataset.ticked
                : failed ? live.dataset.failed : live.dataset.running;
            if (words.textContent !== text) {
                words.textContent = text;
            }
            button.textContent = stopped ? live.dataset.resume : live.dataset.pause;
            return stopped || ticked || document.hidden;
        }

        async function look() {
            if (say() || asking) {
                return;
            }
            asking = true;
            try {
                const asked = performance.now();
                const response = await fetch(live.dataset.url + location.search, {
                    headers: {Accept: "application/json"},
                    redirect: "error",
                    signal: AbortSignal.timeout(30000),
                });
                if (!response.ok) {
                    throw new Error(response.statusText);
                }
                const answer = await response.json();
                if (!say()) {
                    drawn = (asked + performance.now()) / 2;
                    show(answer);
                    tick();
                }
                failed = false;
            } catch {
                failed = true;
            } finally {
                asking = false;
                say();
            }
        }

        button.addEventListener("click", () => {
            stopped = !stopped;
            say();
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
        say();
        live.hidden = false;
        setInterval(look, every);
    }

    document.addEventListener("DOMContentLoaded", () => {
        tick();
        setInterval(tick, 250);
        const live = document.getElementById("tasklock-live");
        if (live) {
            keepUpToDate(live);
        }
    });
}
