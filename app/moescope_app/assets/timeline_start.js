// Starts the timeline before the page's frame is there, and moves it into the frame once that has been drawn. When the
// frame draws it anew (the run has gone on), the new one shows what the old one showed.
((root) => {
  const PATH = /^\/r\/([^/]+)\/timeline$/;
  let written = null; // the address as the current timeline knows it
  const address = {
    read: () => location.search,
    write: (query) => {
      written = `?${query}`;
      history.replaceState(history.state, "", location.pathname + written);
    },
  };
  let current = null;

  const begin = (node, run, kept) => {
    const made = new root.MoescopeTimeline(node, new root.MoescopeTimelineData(run), { address, kept });
    made.run = run;
    written = location.search;
    return made;
  };

  const place = document.getElementById("timeline-early");
  const asked = PATH.exec(location.pathname);
  if (asked) {
    place.className = "timeline early";
    current = begin(place, decodeURIComponent(asked[1]), null);
    current.started.catch(() => { place.remove(); });
    window.moescopeEarly = Promise.race([current.painted, current.started]);
  }

  const adopt = (node) => {
    node.replaceChildren(...place.childNodes);
    current.node = node;
    node.moescope = current;
    place.remove();
    current.paint();
  };

  new MutationObserver(() => {
    const node = document.getElementById("timeline");
    if (!node) {
      if (place.isConnected && document.getElementById("version")) place.remove();
      return;
    }
    const { run } = node.dataset;
    if (node.moescope?.run === run) return;
    if (place.isConnected && current?.run === run) { adopt(node); return; }
    place.remove();
    // A link to another moment leads there; the page drawn anew, or come back to, shows what it showed.
    const isSame = location.search === "" || location.search === written;
    const kept = current?.run === run && current.base && isSame ? current.keep() : null;
    current?.end();
    current = begin(node, run, kept);
    current.started.catch((error) => current.say(`The timeline could not be loaded: ${error.message}`));
  }).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["data-run"] });
})(globalThis);
