// What the pages of a node and of a cluster share: texts in the reader's language, and elements. The build puts it
// before each.
'use strict';

const TONES = { healthy: 'good', unmonitored: 'grey', degraded: 'flag', recovering: 'mend', draining: 'flag',
                quarantined: 'bad', lost: 'bad' };
// The page in the reader's language: English text → translation, with {0}, {1} … for values. Empty: English.
let words = {};
const say = (text, ...values) => (words[text] || text).replace(/\{(\d)\}/g, (_, i) => values[i]);

const byId = (id) => document.getElementById(id);
const known = (value) => value !== null && value !== undefined;
const number = (value, digits, unit) => known(value) ? value.toFixed(digits) + unit : '–';
const percent = (value) => number(value, 0, ' %');
const gib = (bytes) => number(known(bytes) ? bytes / 2 ** 30 : null, 1, ' GiB');
const tone = (state) => TONES[state] || 'grey';

// make('p', {class: 'x'}, child or text, …)
function make(name, attributes = {}, ...children) {
  const svg = name.startsWith('svg:');
  const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}
// Draws only when `value` differs from what this element was drawn of.
const drawn = new WeakMap();
function redraw(element, value, draw) {
  const text = JSON.stringify(value);
  if (drawn.get(element) === text) return;
  drawn.set(element, text);
  element.replaceChildren(...draw());
}

// Loads the Chinese texts of the files where the browser prefers Chinese to English. Texts of the agent and the
// scheduler stay in English.
async function learnWords(...files) {
  const language = navigator.languages.find((one) => /^(en|zh)\b/i.test(one)) || 'en';
  if (!/^zh\b/i.test(language)) return;
  try {
    const answers = await Promise.all(files.map((file) => fetch(file)));
    if (!answers.every((answer) => answer.ok)) return;
    words = Object.assign({}, ...await Promise.all(answers.map((answer) => answer.json())));
    document.documentElement.lang = 'zh-CN';
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const text = texts.currentNode.data.trim();
      if (words[text]) texts.currentNode.data = words[text];
    }
    for (const element of document.querySelectorAll('[aria-label]')) {
      element.setAttribute('aria-label', say(element.getAttribute('aria-label')));
    }
  } catch {
    // In English then.
  }
}
