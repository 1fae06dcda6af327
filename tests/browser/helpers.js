// For the scripts that tests run in a page.

/** Wait until `ready()` is true, and return it; fail with `what`, text or a function of it. */
window.until = async (ready, what, seconds = 30) => {
  for (const end = performance.now() + seconds * 1000; ; await new Promise((go) => setTimeout(go, 10))) {
    const answer = ready();
    if (answer) return answer;
    if (performance.now() > end) throw new Error(`${typeof what === "function" ? what() : what} (waited ${seconds} s)`);
  }
};

/** Wait until `list` has so many, and return it. */
window.whole = async (list, count) => {
  await until(() => list.length >= count, () => `${list.length} of ${count} came`);
  return list;
};

window.numbered = (name, count) => Array.from({ length: count }, (_, number) => `${name} ${number}`);

/** Bytes that are no text, the same ones for the same size. */
window.pattern = (size) => Uint8Array.from({ length: size }, (_, at) => (at * 7 + (at >> 8)) & 255);

window.isPattern = (bytes, size) => bytes.length === size && window.pattern(size).every((one, at) => bytes[at] === one);
