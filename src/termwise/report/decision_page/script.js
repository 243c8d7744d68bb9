"use strict";
// The page is whole without this: here tables learn to be sorted, marks to say what they are, and a head to be chosen.

const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, "µs": 1e-6, ms: 1e-3, s: 1, "%": 1 };
const NUMBER = /^([+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*(B|KiB|MiB|GiB|µs|ms|s|%)?$/;
const collator = new Intl.Collator(document.documentElement.lang, { numeric: true });

function said(cell) {
  return (cell.querySelector(".value") ?? cell).textContent.trim();
}

function isMissing(cell) {
  return cell === undefined || cell.querySelector(".missing") !== null || said(cell) === "";
}

function amount(cell) {
  if (cell.dataset.value !== undefined) return Number(cell.dataset.value);
  const found = said(cell).replaceAll("\u2212", "-").replaceAll(",", "").match(NUMBER);
  return found === null ? null : Number(found[1]) * (UNITS[found[2]] ?? 1);
}

function compared(a, b) {
  const [x, y] = [amount(a), amount(b)];
  return x !== null && y !== null ? x - y : collator.compare(said(a), said(b));
}

// Missing figures stay last, whichever way the others run.
function sort(head, column) {
  const isFalling = head.getAttribute("aria-sort") === "ascending";
  for (const other of head.parentNode.children) other.setAttribute("aria-sort", "none");
  head.setAttribute("aria-sort", isFalling ? "descending" : "ascending");
  const body = head.closest("table").tBodies[0];
  const rows = [...body.rows].sort((a, b) => {
    const [x, y] = [a.cells[column], b.cells[column]];
    if (isMissing(x) || isMissing(y)) return isMissing(x) - isMissing(y);
    return isFalling ? compared(y, x) : compared(x, y);
  });
  body.append(...rows);
}

for (const table of document.querySelectorAll("table")) {
  if (table.tBodies[0].rows.length < 2) continue;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => sort(head, column));
  });
}

const tip = document.getElementById("tip");

function point(event) {
  const mark = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
  tip.hidden = mark === null;
  if (mark === null) return;
  tip.textContent = mark.dataset.tip;
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = `${Math.max(8, Math.min(event.clientX + 12, room))}px`;
  tip.style.top = `${event.clientY > 60 ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18}px`;
}

document.addEventListener("pointermove", point);
document.addEventListener("pointerdown", point);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });

function describe(row, heads) {
  const list = document.createElement("dl");
  [...row.cells].slice(1).forEach((cell, place) => {
    const [name, value] = [document.createElement("dt"), document.createElement("dd")];
    name.textContent = heads[place + 1];
    value.append(...[...cell.childNodes].map((node) => node.cloneNode(true)));
    const pair = document.createElement("div");
    pair.append(name, value);
    list.append(pair);
  });
  const title = document.createElement("h3");
  title.textContent = said(row.cells[0]);
  return [title, list];
}

for (const chooser of document.querySelectorAll(".chooser")) {
  const [layer, head] = [chooser.querySelector(".layer"), chooser.querySelector(".head")];
  const [card, table] = [chooser.querySelector(".card"), chooser.querySelector("table")];
  const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const parts = [...document.querySelectorAll("[data-model]")].filter((part) => part.dataset.model === chooser.dataset.model);
  const marks = parts.flatMap((part) => [...part.querySelectorAll("[data-place]")]);

  const choose = () => {
    const place = `${layer.value},${head.value}`;
    const row = [...table.tBodies[0].rows].find((one) => one.dataset.place === place);
    card.replaceChildren(...(row ? describe(row, heads) : [card.dataset.none]));
    for (const mark of marks) mark.classList.toggle("chosen", mark.dataset.place === place);
  };

  for (const list of [layer, head]) list.addEventListener("change", choose);
  for (const mark of marks) {
    mark.addEventListener("click", () => {
      [layer.value, head.value] = mark.dataset.place.split(",");
      choose();
    });
  }
  chooser.querySelector(".choose").hidden = false;
  choose();
}
