// Loads the dashboard's frame (the scripts in the template "frame") as soon as what a page shows early is there: the
// verdict's findings, or the timeline's first tile. Elsewhere, and after a while in any case, at once.
(() => {
  const PATIENCE_MS = 1000;
  const begin = () => {
    const waiting = [...document.getElementById("frame").content.children];
    const external = waiting.filter((one) => one.src);
    const add = (one) => {
      const made = document.createElement(one.tagName);
      for (const { name, value } of one.attributes) made.setAttribute(name, value);
      made.textContent = one.textContent;
      made.async = false;
      document.body.append(made);
      return made;
    };
    const isFirst = (one) => one.src || one.type === "application/json";
    waiting.filter(isFirst).forEach((one) => {
      const made = add(one);
      if (one === external.at(-1)) made.addEventListener("load", () => waiting.filter((other) => !isFirst(other)).forEach(add));
    });
  };
  const early = window.moescopeEarly ?? Promise.resolve();
  Promise.race([early, new Promise((done) => { setTimeout(done, PATIENCE_MS); })]).then(begin, begin);
})();
