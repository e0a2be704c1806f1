// What a visitor would trip over, found in the page as it is shown. Returns a list of one line for each finding.
() => {
  const wrong = [];
  const isShown = (element) => element.checkVisibility({ checkOpacity: false, checkVisibilityCSS: true });
  const label = (element) => `${element.tagName.toLowerCase()}${element.id ? `#${element.id}` : ""}.${element.className}`;

  // Names: what a screen reader would say of each control.
  const nameOf = (element) => {
    if (element.getAttribute("aria-label")) return element.getAttribute("aria-label");
    const by = element.getAttribute("aria-labelledby");
    if (by) return document.getElementById(by)?.textContent ?? "";
    if (element.labels?.length) return element.labels[0].textContent;
    return element.matches("input, select") ? "" : element.textContent;
  };
  for (const control of document.querySelectorAll("a, button, input, select, summary, nav, aside")) {
    if (isShown(control) && !nameOf(control).trim()) wrong.push(`no name: ${label(control)}`);
  }
  for (const image of document.querySelectorAll("svg, img")) {
    if (image.getAttribute("aria-hidden") !== "true" && !image.getAttribute("aria-label")) wrong.push(`picture without a name: ${label(image)}`);
  }
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  for (const id of ids.filter((id, place) => ids.indexOf(id) !== place)) wrong.push(`id twice: ${id}`);
  for (const role of ["header", "main", "footer", "nav[aria-label]", "[role=search]", "[role=status]"]) {
    if (!document.querySelector(role)) wrong.push(`no ${role}`);
  }
  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.title.trim()) wrong.push("no title");
  let level = 0;
  for (const heading of document.querySelectorAll("main h1, main h2, main h3, main h4")) {
    const next = Number(heading.tagName[1]);
    if (level && next > level + 1) wrong.push(`heading ${next} after ${level}: ${heading.textContent}`);
    level = next;
  }
  // Width: nothing wider than the window.
  if (document.documentElement.scrollWidth > innerWidth) wrong.push(`${document.documentElement.scrollWidth} wide in ${innerWidth}`);

  // Fingers (WCAG 2.2, 2.5.8): what is pressed on a phone is 24 pixels high.
  for (const control of innerWidth < 640 ? document.querySelectorAll("a, button, input, select, summary") : []) {
    if (!isShown(control) || control.closest(".hidden-label, .skip")) continue;
    const height = Math.max(...[control, ...(control.labels ?? [])].map((each) => each.getBoundingClientRect().height));
    if (height < 23.9) wrong.push(`${height.toFixed(1)} high: ${label(control)} ${nameOf(control).slice(0, 30)}`);
  }

  // Words: none of ordinary length goes on in the next line.
  const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = words.nextNode(); node; node = words.nextNode()) {
    if (!isShown(node.parentElement) || node.parentElement.closest(".hidden-label, .skip, noscript")) continue;
    for (const { index, 0: word } of node.data.matchAll(/[\p{L}\p{N}.]{2,20}/gu)) {
      const range = new Range();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) wrong.push(`broken word: ${label(node.parentElement)} ${word}`);
    }
  }

  // Contrast (WCAG 2.2, 1.4.3): 4.5, or 3 for large text. Colours are read off a canvas, whatever their notation.
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const colour = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return [red, green, blue, alpha / 255];
  };
  const over = (top, below) => [0, 1, 2].map((part) => top[part] * top[3] + below[part] * (1 - top[3])).concat(1);
  const behind = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const luminance = (rgb) => {
    const [red, green, blue] = rgb.slice(0, 3).map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  // What lies over the results leaves them in sight.
  const filters = document.getElementById("filters");
  if (innerWidth < 800 && filters.offsetHeight > 0.7 * innerHeight) wrong.push(`filters of ${filters.offsetHeight} px`);
  let texts = 0;
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!(own || element.matches("input, select")) || !isShown(element) || element.closest(".hidden-label, .skip")) continue;
    const style = getComputedStyle(element);
    const back = behind(element);
    const ratio = contrast(over(colour(style.color), back), back);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    texts += 1;
    if (ratio < needed) wrong.push(`contrast ${ratio.toFixed(2)}: ${label(element)} ${element.textContent.slice(0, 30)}`);
  }
  if (texts < 10) wrong.push(`only ${texts} texts were checked`);
  return wrong;
}
