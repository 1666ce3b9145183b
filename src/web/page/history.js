// What the page knows of the past: the samples of the last minutes, the trends of a day, and what is drawn of
// them: charts with axes and the strips of the health timeline. A part of /page.js.

const FINE_MS = 15 * 60 * 1000;      // of /api/history; longer ranges come from /api/trends
const DAY_MS = 24 * 3600 * 1000;
const MOST_POINTS = 450;             // of a line; its older half is thinned beyond
const CLOCK_SET_MS = 60000;          // a sample so much older than the last: the node's clock was set back
const GAP_MS = 90000;                // nothing is drawn between samples further apart
const CHART_WIDTH = 300, CHART_HEIGHT = 60;
const MIB = 2 ** 20;
const RANGES = [[5, '5 min'], [15, '15 min'], [60, '1 h'], [360, '6 h'], [1440, '24 h']];  // in minutes

const SERIES = [
  ['util', 'Utilisation', (s) => s.util, () => 100, (s) => percent(s.util), (top) => `${top} %`],
  ['memory', 'Memory', (s) => s.memory, (gpu) => gpu.memory, (s, gpu) => `${number(known(s.memory) ? s.memory / 2 ** 30 : null, 1, '')} / ${gib(gpu.memory)}`, (top) => `${Math.round(top / 2 ** 30)} GiB`],
  ['power', 'Power', (s) => s.power, (gpu, s) => s.power_limit, (s) => `${number(s.power, 0, '')} / ${watts(s.power_limit)}`, (top) => `${Math.round(top)} W`],
  ['temperature', 'Temperature', (s) => s.temperature, () => 100, (s) => celsius(s.temperature), (top) => `${top} °C`],
];

const lines = new Map();   // uuid → [{at, util, memory, power, temperature}], oldest first, FINE_MS
const trends = new Map();  // uuid → Map(step in seconds → Map(begin of a bucket → the same kind of point))
let range = 15;            // minutes that are shown
const rangeMs = () => range * 60000;

// ---- samples ----

function thin(points) {
  return points.length > MOST_POINTS ? points.filter((_, i) => i % 2 === 0 || i > points.length / 2) : points;
}

function remember(sample) {
  for (const [uuid, values] of Object.entries(sample.gpus || {})) {
    if (!lines.has(uuid)) lines.set(uuid, []);
    const points = lines.get(uuid);
    const last = points.length > 0 ? points[points.length - 1].at : 0;
    if (last > sample.at + CLOCK_SET_MS) points.length = 0;
    else if (last >= sample.at) continue;
    points.push({ at: sample.at, ...values });
    while (points[0].at < sample.at - FINE_MS) points.shift();
    lines.set(uuid, thin(points));
  }
}

// Adds samples of the past to what is known: an agent that has just started knows less than this page.
function rememberPast(samples) {
  const past = new Map();
  for (const sample of samples) {
    for (const [uuid, values] of Object.entries(sample.gpus || {})) {
      if (!past.has(uuid)) past.set(uuid, new Map((lines.get(uuid) || []).map((point) => [point.at, point])));
      past.get(uuid).set(sample.at, { at: sample.at, ...values });
    }
  }
  for (const [uuid, points] of past) {
    const newest = samples[samples.length - 1].at;
    const kept = [...points.values()].filter((point) => point.at >= newest - FINE_MS && point.at <= newest + CLOCK_SET_MS);
    lines.set(uuid, thin(kept.sort((a, b) => a.at - b.at)));
  }
}

function rememberTrends(document) {
  for (const ring of document.rings) {
    for (const [uuid, values] of Object.entries(ring.gpus)) {
      if (!trends.has(uuid)) trends.set(uuid, new Map());
      const own = trends.get(uuid);
      if (!own.has(ring.step)) own.set(ring.step, new Map());
      const buckets = own.get(ring.step);
      values.util.forEach((util, i) => {
        const at = ring.last - (values.util.length - 1 - i) * ring.step * 1000;
        const memory = known(values.memory[i]) ? values.memory[i] * MIB : null;
        const point = { at, util, memory, power: values.power[i], temperature: values.temperature[i] };
        if (!buckets.has(at) || isKnown(point)) buckets.set(at, point);
      });
      for (const at of buckets.keys()) if (at < document.at - DAY_MS || at > document.at) buckets.delete(at);
    }
  }
}

const isKnown = (point) => SERIES.some(([, , value]) => known(value(point)));

// Seconds of a bucket for the range; 0: the samples themselves.
const stepOf = (minutes) => minutes <= 15 ? 0 : minutes <= 60 ? 60 : minutes <= 360 ? 180 : 600;

// The points of the range that ends at `end`, oldest first: buckets in their middle, then the samples after the last
// middle, so that the curve ends at the newest sample also where its bucket has just been closed.
function pointsOf(uuid, end) {
  const from = end - rangeMs(), fine = lines.get(uuid) || [], step = stepOf(range);
  const buckets = step > 0 && trends.has(uuid) && trends.get(uuid).get(step);
  if (!buckets || buckets.size === 0) return fine.filter((point) => point.at >= from);
  const coarse = [...buckets.values()].sort((a, b) => a.at - b.at).map((point) => ({ ...point, at: point.at + step * 500 }));
  const last = coarse[coarse.length - 1].at;
  return [...coarse, ...fine.filter((point) => point.at > last)].filter((point) => point.at >= from && point.at <= end);
}

// ---- charts ----

const clock = (ms, seconds) => new Date(ms).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', ...(seconds ? { second: '2-digit' } : {}) });

// A chart without its title: the curve, the greatest value of its axis, and the times below.
function makePlot() {
  const line = make('svg:path'), area = make('svg:path', { class: 'area' });
  const top = make('span', { class: 'top' }), zero = make('span', { class: 'zero' }, '0');
  const times = [make('span'), make('span'), make('span')];
  const plot = make('div', { class: 'plot', 'aria-hidden': 'true' },
    make('svg:svg', { viewBox: `0 0 ${CHART_WIDTH} ${CHART_HEIGHT}`, preserveAspectRatio: 'none', focusable: 'false' },
      make('svg:path', { class: 'grid', d: `M${CHART_WIDTH / 2} 0V${CHART_HEIGHT}M0 ${CHART_HEIGHT / 2}H${CHART_WIDTH}` }), area, line),
    top, zero, make('div', { class: 'axis' }, ...times));
  return { plot, line, area, top, times };
}

function showTimes(times, end) {
  times.forEach((element, i) => setText(element, clock(end - rangeMs() * (2 - i) / 2, range <= 5)));
}

function drawLine(card, series, points, latest) {
  const [key, , value, top, , topText] = series;
  const chart = card.charts[key];
  const end = latest.at, most = top(card.gpu, latest) || Math.max(1, ...points.map((p) => value(p) || 0));
  const gap = Math.max(GAP_MS, 2.5 * 1000 * stepOf(range));
  let path = '', area = '', from = null, x = 0, before = 0;
  const finish = () => {
    if (from !== null) area += `L${x} ${CHART_HEIGHT}L${from} ${CHART_HEIGHT}Z`;
    from = null;
  };
  for (const point of points) {
    const y = value(point);
    if (!known(y) || point.at > before + gap) finish();
    before = point.at;
    if (!known(y)) continue;
    x = (CHART_WIDTH * (1 - (end - point.at) / rangeMs())).toFixed(1);
    const at = `${x} ${(CHART_HEIGHT * (1 - Math.min(1, y / most))).toFixed(1)}`;
    path += (from === null ? 'M' : 'L') + at;
    area += (from === null ? 'M' : 'L') + at;
    if (from === null) from = x;
  }
  finish();
  chart.line.setAttribute('d', path);
  chart.area.setAttribute('d', area);
  setText(chart.top, topText(most));
  showTimes(chart.times, end);
}

// ---- the health timeline ----

// The spans of [from, to] in which the agent sampled: outside of them nothing is known. Merged, oldest first.
function knownSpans(from, to, live) {
  const fine = [...new Set([...lines.values()].flatMap((points) => points.map((point) => point.at)))].sort((a, b) => a - b);
  const spans = fine.map((at) => [at, at]);
  // Of each time the finest buckets that reach back to it: a coarser one hides what is missing in it.
  const reach = { 60: [0, 60], 180: [60, 360], 600: [360, 1440] };
  for (const rings of trends.values()) {
    for (const [step, buckets] of rings) {
      const [nearest, farthest] = (reach[step] || [0, 0]).map((minutes) => to - minutes * 60000);
      for (const point of buckets.values()) {
        const begin = Math.max(point.at, farthest), end = Math.min(point.at + step * 1000, nearest);
        if (end > begin && isKnown(point)) spans.push([begin, end]);
      }
    }
  }
  spans.sort((a, b) => a[0] - b[0]);
  const merged = [];
  for (const [start, end] of spans) {
    const last = merged[merged.length - 1];
    if (last && start - last[1] <= GAP_MS) last[1] = Math.max(last[1], end);
    else merged.push([start, end]);
  }
  if (live && merged.length > 0 && to - merged[merged.length - 1][1] <= GAP_MS) merged[merged.length - 1][1] = to;
  return merged.filter(([, end]) => end > from).map(([start, end]) => [Math.max(start, from), Math.min(end, to)]);
}

// [state or 'unknown', begin, end] of a GPU's strip.
function stripParts(gpu, from, to, spans) {
  const own = node.timeline.filter((moment) => moment.uuid === gpu.uuid);
  const states = [];
  let begin = from, state = own.length > 0 ? own[0].from : gpu.state;
  for (const moment of [...own, { at: to, to: null }]) {
    const end = Math.min(Math.max(moment.at, from), to);
    if (end > begin) states.push([state, begin, end]);
    begin = Math.max(begin, end);
    state = moment.to;
  }
  const parts = [];
  let at = from;
  // The agent knows a GPU from its first state on, also where it does not sample.
  for (const [start, end] of [...(spans || [[Math.max(from, gpu.since || to), to]]), [to, to]]) {
    if (start > at) parts.push(['unknown', at, start]);
    for (const [name, a, b] of states) {
      if (Math.min(b, end) > Math.max(a, start)) parts.push([name, Math.max(a, start), Math.min(b, end)]);
    }
    at = Math.max(at, end);
  }
  return parts;
}

const strips = new Map();  // uuid → the bar

function makeStrips() {
  strips.clear();
  const rows = node.gpus.map((gpu) => {
    const bar = make('div');
    strips.set(gpu.uuid, bar);
    return make('div', { class: 'strip' }, make('span', {}, `GPU ${gpu.index}`), bar);
  });
  if (rows.length === 0) return [];
  return [...rows, make('div', { class: 'strip' }, make('span'), make('div', { class: 'axis', id: 'strip-axis' }, make('span'), make('span'), make('span')))];
}

// Paints the strips in place; `live`: what was last said is still so.
function paintStrips(live) {
  if (!node || node.gpus.length === 0) return;
  redraw(byId('strips'), node.gpus.map((gpu) => [gpu.uuid, gpu.index]), makeStrips);
  const to = Date.now(), from = to - rangeMs();
  const sampledAny = lines.size > 0 || trends.size > 0;
  const spans = sampledAny ? knownSpans(from, to, live) : null;
  for (const gpu of node.gpus) {
    const at = (ms) => `${(100 * (ms - from) / rangeMs()).toFixed(2)}%`;
    const parts = stripParts(gpu, from, to, spans);
    const colours = parts.map(([name, a, b]) => `var(--${name === 'unknown' ? 'unknown' : tone(name)}) ${at(a)} ${at(b)}`);
    const bar = strips.get(gpu.uuid);
    bar.style.backgroundImage = colours.length > 0 ? `linear-gradient(to right, ${colours.join(', ')})` : 'none';
    setAttribute(bar, 'title', parts.map(([name, a, b]) => `${clock(a)}–${clock(b)} ${say(name)}`).join(', '));
  }
  showTimes([...byId('strip-axis').children], to);
}

// ---- the range ----

async function fetchTrends() {
  try {
    const answer = await fetch('/api/trends');
    if (!answer.ok) return;
    rememberTrends(await answer.json());
    if (latest) show();
    paintStrips(!isStale());
  } catch {
    // The page says why nothing can be read; the range shows the samples that it has.
  }
}

function setRange(minutes) {
  range = minutes;
  for (const button of byId('ranges').children) setAttribute(button, 'aria-pressed', Number(button.dataset.minutes) === minutes);
  if (latest) show();
  paintStrips(!isStale());
}

function makeRanges() {
  byId('ranges').append(...RANGES.map(([minutes, text]) => {
    const button = make('button', { type: 'button', 'data-minutes': minutes, 'aria-pressed': minutes === range }, say(text));
    button.addEventListener('click', () => setRange(minutes));
    return button;
  }));
}
