(() => {
  let saved = null;
  try { saved = localStorage.getItem("moescope-theme"); } catch { saved = null; }
  if (saved === "dark" || saved === "light") document.documentElement.dataset.theme = saved;
  document.documentElement.classList.add("js");
})();
