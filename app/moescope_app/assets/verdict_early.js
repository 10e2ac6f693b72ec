// Shows an analysed run's findings before the dashboard's frame has loaded; the frame's own page replaces them.
(() => {
  const asked = /^\/(?:r\/([^/]+)(?:\/verdict)?\/?)?$/.exec(location.pathname);
  if (!asked) return;
  const element = (name, className, ...children) => {
    const made = Object.assign(document.createElement(name), { className });
    made.append(...children);
    return made;
  };
  const card = ({ severity, code, claim, advice, meta, cost, share }) => element("article", `finding ${severity}`,
    element("div", "cost", ...(cost ? [element("b", "", cost), element("span", "", `${share} of the step`)] : [element("span", "", "no cost of its own")])),
    element("div", "claim", element("p", "tags", element("span", "severity", severity), element("code", "", code)), element("h3", "", claim),
      ...(advice ? [element("p", "", element("b", "", "Try: "), advice)] : []), element("p", "meta", meta)));
  const place = document.getElementById("page-early");

  const show = async () => {
    const answer = await fetch(`/early/${asked[1] ?? ""}`);
    if (answer.status !== 200 || document.getElementById("version")) return;
    const { notes, facts, findings } = await answer.json();
    const labelled = facts.map(([label, value]) => element("div", "", element("dt", "", label), element("dd", "", value)));
    place.append(...(notes.length ? [element("div", "banner", ...notes.map((note) => element("p", "", note)))] : []),
      element("section", "verdict", element("dl", "facts", ...labelled), ...findings.map(card)));
    new MutationObserver((_, observer) => {
      if (!document.getElementById("version")) return;
      place.remove();
      observer.disconnect();
    }).observe(document, { childList: true, subtree: true });
    await new Promise((done) => { requestAnimationFrame(done); });
  };
  window.moescopeEarly = show();
})();
