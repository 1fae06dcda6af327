// How the search of the site orders what it found: pages that people use, before those of how and why it was made.
const BACKGROUND = /^(?!docs\/)|^docs\/(decisions\/|architecture|benchmarks|evidence|glossary|growth|performance|testing)/;

var Scorer = {
  score: ([page, title, anchor, description, score]) => (BACKGROUND.test(page) ? score / 4 : score),
  // The rest is Sphinx's own.
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
