/* Buttons that copy a lock's name, its key and command lines. Without this file there are none. */
"use strict";
{
    // Without https a page may not use the clipboard's own interface.
    async function copy(text) {
        if (navigator.clipboard) {
            await navigator.clipboard.writeText(text);
            return;
        }
        const field = document.createElement("textarea");
        field.value = text;
        field.className = "tasklock-copy-source";
        document.body.append(field);
        field.select();
        try {
            if (!document.execCommand("copy")) {
                throw new Error("refused");
            }
        } finally {
            field.remove();
        }
    }

    function addButton(place, words, says) {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "tasklock-copy";
        button.textContent = words.copy;
        button.setAttribute("aria-label", `${words.copy}: ${place.dataset.tasklockCopy}`);
        button.addEventListener("click", async () => {
            let result = words.copied;
            try {
                await copy(place.dataset.tasklockCopy);
            } catch {
                result = words.failed;
            }
            button.focus();
            button.textContent = result;
            // Emptied first: the same words again would not be read out.
            says.textContent = "";
            setTimeout(() => { says.textContent = result; }, 50);
            setTimeout(() => { button.textContent = words.copy; }, 3000);
        });
        place.after(" ", button);
    }

    document.addEventListener("DOMContentLoaded", () => {
        const words = document.getElementById("tasklock-copy");
        if (!words) {
            return;
        }
        const says = document.createElement("p");
        says.id = "tasklock-copy-says";
        says.setAttribute("role", "status");
        words.after(says);
        for (const place of document.querySelectorAll("[data-tasklock-copy]")) {
            addButton(place, words.dataset, says);
        }
    });
}
