// Counts down, and keeps the list of locks up to date. Without it all pages work.
"use strict";
{
    const EVERY_MS = 5000, SECOND_MS = 1000;
    let drawn = performance.now(), asOf = new Date();

    // As duration() on the server says it.
    function duration(seconds) {
        const whole = Math.floor(Math.max(0, seconds)), two = (n) => String(n).padStart(2, "0");
        if (whole < 1) {
            return `${(Math.floor(Math.max(0, seconds) * 10) / 10).toFixed(1)}s`;
        }
        if (whole < 60) {
            return `${whole}s`;
        }
        if (whole < 3600) {
            return `${Math.floor(whole / 60)}m${two(whole % 60)}s`;
        }
        if (whole < 86400) {
            return `${Math.floor(whole / 3600)}h${two(Math.floor(whole % 3600 / 60))}m`;
        }
        return `${Math.floor(whole / 86400)}d${two(Math.floor(whole % 86400 / 3600))}h`;
    }

    const list = () => document.getElementById("tasklock-list");
    const isStale = () => document.body.classList.contains("tasklock-stale");

    function count() {
        if (isStale()) {
            return;  // Nobody knows whether these leases go on.
        }
        const passed = (performance.now() - drawn) / SECOND_MS;
        for (const cell of document.querySelectorAll("[data-tasklock-ttl]")) {
            const left = Math.max(0, Number(cell.dataset.tasklockTtl) - passed);
            cell.textContent = duration(left);
            if (cell.nextElementSibling?.matches("progress")) {
                cell.nextElementSibling.value = left;
            }
        }
        for (const cell of document.querySelectorAll("[data-tasklock-age]")) {
            cell.textContent = duration(Number(cell.dataset.tasklockAge) + passed);
        }
    }

    const rowsIn = (part) => [...part.querySelectorAll("#result_list tbody tr")];
    const idOf = (row) => row.querySelector("th a").pathname;

    // Whether somebody is busy with the table, under whom nothing must move.
    function isInUse() {
        const table = document.getElementById("result_list"), selected = document.getSelection();
        return list().querySelector("details[open]") !== null || Boolean(table) && (
            table.matches(":hover, :focus-within")
            || table.querySelector("input:checked") !== null
            || !selected.isCollapsed && selected.intersectsNode?.(table)
            || !selected.isCollapsed && table.contains(selected.anchorNode));
    }

    function updateInPlace(answer) {
        const news = new Map(rowsIn(answer).map((row) => [idOf(row), row]));
        for (const row of rowsIn(document)) {
            const said = news.get(idOf(row));
            row.classList.toggle("tasklock-vanished", !said);
            for (const cell of said ? row.querySelectorAll("td[class^=field-]") : []) {
                const other = said.getElementsByClassName(cell.classList[0])[0];
                if (other) {
                    cell.replaceChildren(...other.childNodes);
                }
            }
        }
    }

    function replaceAll(answer) {
        list().replaceWith(answer.getElementById("tasklock-list"));
        const boxes = document.querySelectorAll("tr input.action-select");
        if (boxes.length && window.Actions) {
            window.Actions(boxes);  // Django's own script has bound those that are gone.
        }
    }

    function say(words, ended = false) {
        const live = document.getElementById("tasklock-live");
        live.hidden = !words;
        live.querySelector("a").hidden = !ended;
        if (live.firstElementChild.textContent !== words) {
            live.firstElementChild.textContent = words;
        }
        document.body.classList.toggle("tasklock-stale", Boolean(words));
    }

    async function look() {
        const {silent, ended} = document.getElementById("tasklock-live").dataset;
        try {
            const asked = performance.now();
            const response = await fetch(location.href, {
                redirect: "manual",  // To the login, whose page is no answer.
                signal: AbortSignal.timeout(4 * EVERY_MS),
            });
            if (response.type === "opaqueredirect" || response.status === 403) {
                say(ended, true);
                return;
            }
            const answer = new DOMParser().parseFromString(await response.text(), "text/html");
            const part = answer.getElementById("tasklock-list");
            if (!response.ok || !part || "silent" in part.dataset) {
                throw new Error("no answer");
            }
            say("");
            drawn = (asked + performance.now()) / 2;
            asOf = new Date();
            if (isInUse()) {
                updateInPlace(answer);
            } else {
                replaceAll(answer);
            }
            for (const part of [".tasklock-tabs", "#tasklock-notice", "#tasklock-pages"]) {
                document.querySelector(part).replaceChildren(
                    ...answer.querySelector(part).childNodes);
            }
        } catch {
            count();
            say(silent.replace("@", asOf.toLocaleTimeString([], {hour: "2-digit", minute: "2-digit"})));
        }
    }

    document.addEventListener("DOMContentLoaded", () => {
        setInterval(count, SECOND_MS / 4);
        if (!list()) {
            return;
        }
        let asking = false;
        setInterval(async () => {
            if (!asking && !document.hidden) {
                asking = true;
                await look();
                asking = false;
            }
        }, EVERY_MS);
    });
}
