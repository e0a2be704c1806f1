// Sets light or dark before the page is painted: the visitor's choice, else the system's.
"use strict";
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("ctx-embed.theme");
  } catch {
    // Storage may be blocked; the system's choice holds then.
  }
  const apply = () => {
    root.dataset.theme = chosen || (system.matches ? "dark" : "light");
    root.dispatchEvent(new Event("themechange"));
  };
  system.addEventListener("change", apply);
  root.addEventListener("themetoggle", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("ctx-embed.theme", chosen);
    } catch {
      // Then the choice lasts until the page is closed.
    }
    apply();
  });
  apply();
})();
