// When a run has gone on, its page is drawn anew; what the reader had opened stays open, and the page stays where it was.
(() => {
  const SETTLED_MS = 2000;
  const open = new Set();
  let path = null;
  let version = null;
  let place = { height: 0, scroll: 0 };

  const all = () => [...document.querySelectorAll("#page details")];
  const nameOf = (details) => {
    const section = details.closest("[id]");
    return `${section.id} ${[...section.querySelectorAll("details")].indexOf(details)}`;
  };
  const remember = () => {
    const page = document.getElementById("page");
    if (page && !page.style.minHeight) place = { height: page.clientHeight, scroll: window.scrollY };
  };
  const restore = () => {
    const page = document.getElementById("page");
    for (const details of all()) details.open = open.has(nameOf(details));
    page.style.minHeight = `${place.height}px`;
    window.scrollTo(0, place.scroll);
    setTimeout(() => { page.style.minHeight = ""; }, SETTLED_MS);
  };

  document.addEventListener("toggle", ({ target }) => {
    if (!target.isConnected || !target.matches("#page details")) return;
    if (target.open) open.add(nameOf(target)); else open.delete(nameOf(target));
    remember();
  }, true);
  document.addEventListener("scroll", remember, { passive: true });
  new MutationObserver(() => {
    const now = document.getElementById("version")?.dataset.version;
    if (now === undefined || (now === version && path === location.pathname)) return;
    if (path === location.pathname) restore(); else open.clear();
    path = location.pathname;
    version = now;
  }).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-version"] });
})();
