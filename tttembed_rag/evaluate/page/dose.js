"use strict";
// Ranking is linear in the dose: a candidate scores its similarity plus the dose times its lift.
(() => {
  const slider = document.getElementById("dose"), said = document.getElementById("dose-said");
  const lists = [...document.querySelectorAll("ol.after")].map((list) => ({
    list,
    rows: [...list.children].map((item) => ({
      item,
      from: item.querySelector(".from"),
      before: Number(item.dataset.before),
      score: Number(item.dataset.score),
      lift: Number(item.dataset.lift),
    })),
  }));
  const rank = () => {
    const dose = Number(slider.value);
    said.value = dose.toFixed(2) + (dose === 1 ? ", as served" : dose === 0 ? ", base vectors" : "");
    for (const { list, rows } of lists) {
      rows.sort((a, b) => b.score + dose * b.lift - a.score - dose * a.lift || a.before - b.before);
      rows.forEach((row, place) => {
        row.item.hidden = place >= Number(list.dataset.listed);
        row.from.textContent = row.before === place + 1 ? "" : `${row.before} \u2192 ${place + 1}`;
      });
      list.append(...rows.map((row) => row.item));
    }
  };
  slider.addEventListener("input", rank);
  rank();
})();
