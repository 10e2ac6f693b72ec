// Runs in the head, before the first paint: the colours chosen last time, else those of the system.
(() => {
  const root = document.documentElement;
  const saved = localStorage.getItem("moescope-theme");
  if (saved === "dark" || saved === "light") root.dataset.theme = saved;
  const current = () => root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  // Called by the page with the clicks on its button; returns the theme for the figures.
  window.moescopeTheme = (clicks) => {
    if (clicks) {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      localStorage.setItem("moescope-theme", root.dataset.theme);
      document.dispatchEvent(new Event("moescope-theme"));
    }
    return current();
  };
})();
