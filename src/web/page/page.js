// The node page, live: /api/events says what changed, and only that is drawn again. The build serves it with
// common.js, history.js, use.js and runbook.js as one script.
const SILENT_MS = 6000;      // without a sample for so long, the page says so
const FIRST_WAIT_MS = 2000, MOST_WAIT_MS = 15000;  // between two tries where the server refuses
const TRENDS_MS = 60000;  // between two readings of the trends

const watts = (value) => number(value, 0, ' W');
const celsius = (value) => number(value, 0, ' °C');
// Bytes per second as NVIDIA states the speed of links.
const rate = (value) => !known(value) ? '–' : value >= 1e9 ? number(value / 1e9, 1, ' GB/s') : number(value / 1e6, 0, ' MB/s');
const mhz = (value) => number(value, 0, ' MHz');
const time = (ms) => new Date(ms).toLocaleTimeString();
const stamp = (ms) => Date.now() - ms > 12 * 3600 * 1000 ? new Date(ms).toLocaleString() : time(ms);
// Copies where the page has no right to the clipboard too: it has none by plain HTTP.
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make('textarea', { class: 'unseen', readonly: '', 'aria-hidden': 'true' });
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand('copy');
    area.remove();
    return copied;
  }
}
// A button that copies what `text` returns; `what` names it for screen readers.
function copyButton(what, text) {
  const button = make('button', { type: 'button', class: 'copy', 'aria-label': say('Copy {0}', what) }, say('Copy'));
  button.addEventListener('click', async () => {
    const copied = await copyText(text());
    button.focus();
    setText(button, copied ? say('Copied') : say('Not copied'));
    setText(byId('announcements'), button.textContent);
    setTimeout(() => setText(button, say('Copy')), 2000);
  });
  return button;
}
let node = null;          // the last node document
const cards = new Map();  // uuid → Card
// ---- a GPU's card ----

class Card {
  constructor(uuid) {
    this.uuid = uuid;
    this.visible = true;
    this.head = make('h3', { id: `gpu-${uuid}`, tabindex: '-1' });
    this.badge = make('span', { class: 'badge' });
    this.facts = make('span', { class: 'soft mono' });
    const facts = make('p', {}, this.facts, ' ', copyButton(say('the UUID'), () => uuid));
    this.why = make('div', { class: 'why' });
    this.charts = {};
    const figures = SERIES.map(([key, title]) => {
      const chart = makePlot();
      chart.value = make('span');
      this.charts[key] = chart;
      return make('figure', { class: 'chart', 'data-series': key },
        make('figcaption', {}, make('span', {}, say(title)), chart.value), chart.plot);
    });
    this.numbers = {};
    const numbers = ['SM clock', 'Memory clock', 'Memory use', 'Memory temp.', 'NVLink traffic'].map((title) => {
      this.numbers[title] = make('dd', {}, '–');
      return make('div', {}, make('dt', {}, say(title)), this.numbers[title]);
    });
    this.parts = make('div');
    this.use = new Usage();
    this.element = make('article', { class: 'card', 'aria-labelledby': `gpu-${uuid}` },
      make('header', {}, this.head, this.badge), facts, this.why,
      make('div', { class: 'charts' }, ...figures), make('dl', { class: 'numbers' }, ...numbers), this.parts, this.use.element);
    this.tile = make('a', { href: `#gpu-${uuid}` });
    this.tileName = make('span');
    this.tileValue = make('strong');
    this.tile.append(this.tileName, ' ', this.tileValue);
  }

  update(gpu) {
    this.gpu = gpu;
    setText(this.head, `GPU ${gpu.index} · ${gpu.model || say('unknown model')}`);
    setText(this.badge, say(gpu.state));
    for (const element of [this.element, this.tile]) setAttribute(element, 'data-tone', tone(gpu.state));
    setText(this.facts, [gpu.uuid, gpu.slot, known(gpu.numa) ? `NUMA ${gpu.numa}` : ''].filter(Boolean).join(' · '));
    setText(this.tileName, `GPU ${gpu.index}`);
    setAttribute(this.tile, 'aria-label', `GPU ${gpu.index}, ${say(gpu.state)}`);
    this.why.hidden = !gpu.reason && gpu.faults.length === 0 && !gpu.excluded;
    redraw(this.why, [gpu.state, gpu.reason, gpu.comes_back, gpu.since, gpu.due, gpu.faults, gpu.relapses, gpu.excluded], () => reasons(gpu));
    redraw(this.parts, [gpu.mig, gpu.shares, gpu.holders], () => parts(gpu));
    this.showUse();
  }

  sample(latest) {
    for (const series of SERIES) setText(this.charts[series[0]].value, series[4](latest, this.gpu));
    setText(this.numbers['SM clock'], mhz(latest.sm_clock));
    setText(this.numbers['Memory clock'], mhz(latest.memory_clock));
    setText(this.numbers['Memory use'], percent(latest.memory_util));
    setText(this.numbers['Memory temp.'], celsius(latest.memory_temperature));
    setText(this.numbers['NVLink traffic'], rate(latest.nvlink));
    this.numbers['NVLink traffic'].parentElement.hidden = !known(latest.nvlink);
    setText(this.tileValue, percent(latest.util));
    this.latest = latest;
    this.showUse();
    this.draw();
  }

  showUse() {
    this.use.show(this.gpu, use, this.latest);
  }

  // The lines, where they are seen.
  draw() {
    if (!this.visible || document.hidden || !this.latest) return;
    const points = pointsOf(this.uuid, this.latest.at);
    for (const series of SERIES) drawLine(this, series, points, this.latest);
  }
}

const MARK = '\u0000';
// The parts of a text around its mark, with an element in its place.
const aroundFirst = (text, element) => [text.split(MARK)[0], element, text.split(MARK)[1]];

function reasons(gpu) {
  const all = [];
  if (gpu.reason || gpu.faults.length > 0) {
    all.push(make('p', {}, ...aroundFirst(say('{0} since {1}', MARK, stamp(gpu.since)), make('strong', {}, ...linkXids(gpu.reason || say(gpu.state))))));
  }
  if (gpu.excluded) all.push(make('p', {}, make('strong', {}, `GPU ${gpu.index} ${gpu.excluded}`)));
  if (gpu.comes_back) all.push(make('p', {}, say('Comes back: {0}', gpu.comes_back)));
  if (gpu.due) all.push(make('p', {}, say('Offered again {0} at the earliest', stamp(gpu.due))));
  if (gpu.relapses) all.push(make('p', {}, say('Relapses: {0}', gpu.relapses)));
  const classes = [...new Set(gpu.faults.map((fault) => fault.class))];
  if (classes.length > 0) all.push(make('p', {}, ...classes.flatMap((name) => [make('a', { href: `#runbook-${name}` }, say('Runbook: {0}', name)), ' '])));
  if (gpu.faults.length > 1) {
    all.push(make('ul', {}, ...gpu.faults.map((fault) =>
      make('li', {}, ...linkXids(say('{0} ({1}×, last {2}, {3})', fault.text, fault.count, stamp(fault.last), fault.effect))))));
  }
  return all;
}

function shareGrid(shares, holders) {
  const held = new Map(holders.map((holder) => [holder.device, holder]));
  const grid = make('div', { class: 'shares', role: 'img', 'aria-label': say('{0} of {1} shares are held', held.size, shares.length) });
  for (const id of shares) {
    const holder = held.get(id);
    grid.append(holder ? make('i', { class: 'held', title: holderText(holder) }) : make('i'));
  }
  return grid;
}

function sliceMap(mig, holders) {
  const rows = new Map();  // compute instances of one GPU instance lie below each other
  const list = make('ol', { class: 'slices', 'aria-label': say('MIG devices on {0} memory slices', mig.slices) });
  // Slices are equally wide, and wide enough for the names of the profiles; a narrow card scrolls.
  const widest = Math.max(1, ...mig.devices.map((device) => (device.profile.length + 2) / Math.max(1, device.size)));
  list.style.gridTemplateColumns = `repeat(${mig.slices}, minmax(${widest.toFixed(1)}ch, 1fr))`;
  for (const device of mig.devices) {
    const row = (rows.get(device.start) || 0) + 1;
    rows.set(device.start, row);
    const own = holders.filter((holder) => holder.uuid === device.uuid);
    const who = own.map((holder) => `${holder.namespace}/${holder.pod}`).join(', ') || say('free');
    const where = device.size > 1 ? say('slices {0}–{1}', device.start, device.start + device.size - 1) : say('slice {0}', device.start);
    const item = make('li', { 'data-tone': tone(device.state), title: `${device.uuid}, ${where}, ${say(device.state)}, ${who}` },
      make('b', {}, device.profile), make('span', { class: 'unseen' }, `${where}, ${say(device.state)}: `), who);
    if (device.reason) item.append(make('b', {}, device.reason));
    if (own.length > 0) item.classList.add('held');
    item.style.gridColumn = `${device.start + 1} / span ${Math.max(1, device.size)}`;
    item.style.gridRow = String(row);
    list.append(item);
  }
  return list;
}

function parts(gpu) {
  const all = [];
  if (gpu.mig) {
    all.push(make('h4', {}, say('MIG: {0} devices', gpu.mig.devices.length)));
    all.push(gpu.mig.devices.length > 0 ? make('div', { class: 'wide', tabindex: '0', role: 'group', 'aria-label': say('MIG devices on {0} memory slices', gpu.mig.slices) }, sliceMap(gpu.mig, gpu.holders)) : make('p', { class: 'soft' }, say('No MIG device yet')));
  }
  if (gpu.shares.length > 1) {
    all.push(make('h4', {}, say('{0}: {1} shares', gpu.resource, gpu.shares.length)), shareGrid(gpu.shares, gpu.holders));
  }
  return all;
}

// ---- topology ----

// The worst fault of a GPU's links, of all or of those to that GPU: "down", "errors" or "none".
function linkFault(gpu, peer) {
  const faulty = ((gpu.nvlinks || {}).faulty || []).filter((link) => peer === undefined || link.peer === peer);
  return faulty.some((link) => link.fault === 'down') ? 'down' : faulty.length > 0 ? 'errors' : 'none';
}
function linkText(gpu) {
  const down = say('{0} of {1} links up', gpu.nvlinks.up, gpu.nvlinks.all);
  const noisy = gpu.nvlinks.faulty.filter((link) => link.fault === 'errors').map((link) => link.link);
  return noisy.length === 0 ? down : say('{0}, errors on link {1}', down, noisy.join(', '));
}

function picture() {
  const gpus = node.gpus, columns = Math.min(4, gpus.length || 1), gap = 92, left = 56;
  const switched = gpus.filter((gpu) => gpu.nvswitch_links > 0);
  const groups = [...new Set(gpus.map((gpu) => String(gpu.numa ?? '?')))].map((numa) =>
    [numa, gpus.filter((gpu) => String(gpu.numa ?? '?') === numa)]);
  const places = new Map(), shapes = [], boxes = [];
  let y = 40;
  groups.forEach(([numa, members], index) => {
    const rows = Math.ceil(members.length / columns);
    boxes.push(make('svg:rect', { class: 'numa', x: 12, y: y - 30, width: columns * gap + 20, height: rows * 76 + 24, rx: 10 }),
      make('svg:text', { class: 'soft', x: 22, y: y + rows * 76 - 17 }, numa === '?' ? say('NUMA node unknown') : say('NUMA node {0}', numa)));
    members.forEach((gpu, i) => places.set(gpu.index, [left + 12 + (i % columns) * gap, y + Math.floor(i / columns) * 76 + 6]));
    y += rows * 76 + 36 + (switched.length > 0 && index === 0 ? 54 : 12);
  });
  if (switched.length > 0) {
    const first = Math.ceil(groups[0][1].length / columns) * 76;
    const centre = [columns * gap / 2 + 22, first + 64];
    for (const gpu of switched) {
      const [x, at] = places.get(gpu.index);
      shapes.push(make('svg:line', { class: 'nvlink', 'data-traffic': gpu.uuid, 'data-fault': linkFault(gpu), x1: x, y1: at, x2: centre[0], y2: centre[1], 'stroke-width': 2.5 }));
    }
    shapes.push(make('svg:rect', { class: 'switch', x: centre[0] - 66, y: centre[1] - 14, width: 132, height: 28, rx: 6 }),
      make('svg:text', { x: centre[0], y: centre[1] }, `NVSwitch · NV${Math.max(...switched.map((gpu) => gpu.nvswitch_links))}`));
  }
  for (let a = 0; a < gpus.length; ++a) {
    for (let b = a + 1; b < gpus.length; ++b) {
      const label = node.links[a][b], nv = /^NV(\d+)$/.exec(label);
      if ((nv && gpus[a].nvswitch_links > 0 && gpus[b].nvswitch_links > 0) || (!nv && !['PIX', 'PXB'].includes(label))) continue;
      const [x1, y1] = places.get(gpus[a].index), [x2, y2] = places.get(gpus[b].index);
      // Bent, so that it does not run through the GPUs between.
      const bend = Math.abs(a - b) > 1 && y1 === y2 ? 34 : 0;
      shapes.push(make('svg:path', { class: nv ? 'nvlink' : 'pcie', 'data-fault': [linkFault(gpus[a], gpus[b].index), linkFault(gpus[b], gpus[a].index)].sort()[0], d: `M${x1} ${y1}Q${(x1 + x2) / 2} ${(y1 + y2) / 2 - bend} ${x2} ${y2}`,
                                     'stroke-width': nv ? Math.min(6, 1 + Number(nv[1]) / 3) : 1 }));
    }
  }
  for (const gpu of gpus) {
    const [x, at] = places.get(gpu.index);
    shapes.push(make('svg:circle', { class: 'node', 'data-tone': tone(gpu.state), cx: x, cy: at, r: 24 }),
      make('svg:text', { x, y: at }, `GPU ${gpu.index}`), make('svg:text', { class: 'rate', 'data-rate': gpu.uuid, x, y: at + 34 }));
    if (linkFault(gpu) !== 'none') shapes.push(make('svg:text', { class: 'rate', 'data-links': gpu.uuid, x, y: at - 31 },
      linkFault(gpu) === 'down' ? say('{0} of {1} links', gpu.nvlinks.up, gpu.nvlinks.all) : say('link errors'), make('svg:title', {}, linkText(gpu))));
  }
  const text = switched.length > 0 ? say('{0} GPUs on {1} NUMA nodes, {2} of them on NVSwitch', gpus.length, groups.length, switched.length)
    : say('{0} GPUs on {1} NUMA nodes', gpus.length, groups.length);
  return make('svg:svg', { viewBox: `0 0 ${columns * gap + 44} ${y - 40}`, role: 'img', 'aria-label': say('{0}; the table below has every link', text) },
    ...boxes, ...shapes);
}

// NVLink traffic at each GPU: as a number, and as the width of its line to the switch (a link carries about 50 GB/s).
const LINK_RATE = 50e9;
function showTraffic() {
  if (!node || !latest) return;
  for (const gpu of node.gpus) {
    const now = (latest.gpus || {})[gpu.uuid], traffic = now ? now.nvlink : null;
    for (const text of document.querySelectorAll(`[data-rate="${CSS.escape(gpu.uuid)}"]`)) setText(text, known(traffic) ? rate(traffic) : '');
    for (const line of document.querySelectorAll(`[data-traffic="${CSS.escape(gpu.uuid)}"]`)) {
      const share = known(traffic) ? Math.min(1, traffic / (gpu.nvswitch_links * LINK_RATE)) : 0;
      setAttribute(line, 'stroke-width', (1.5 + 7 * Math.sqrt(share)).toFixed(1));
    }
  }
}

function matrix() {
  const head = make('tr', {}, make('td'), ...node.gpus.map((gpu) => make('th', { scope: 'col' }, `GPU ${gpu.index}`)),
    make('th', { scope: 'col' }, say('NUMA node')));
  const rows = node.gpus.map((gpu, a) => make('tr', {}, make('th', { scope: 'row' }, `GPU ${gpu.index}`),
    ...node.links[a].map((label) => make('td', {}, label)), make('td', {}, known(gpu.numa) ? String(gpu.numa) : '–')));
  return [make('table', {}, make('caption', { class: 'unseen' }, say('Links between GPUs, as nvidia-smi topo -m names them')),
    make('thead', {}, head), make('tbody', {}, ...rows))];
}

// ---- timeline, events ----

const entry = (at, head, colour, text) => make('li', { 'data-tone': colour },
  make('time', { datetime: new Date(at).toISOString() }, stamp(at)), make('b', {}, head), ' ', ...linkXids(text));
const nothing = (text) => make('li', { class: 'soft' }, text);

function timelineItems() {
  if (node.timeline.length === 0) return [nothing(say('Nothing has changed since the agent started.'))];
  return [...node.timeline].reverse().map((moment) =>
    entry(moment.at, `${moment.device}: ${say(moment.from)} → ${say(moment.to)}`, tone(moment.to), moment.reason));
}

function eventItems() {
  if (node.events.length === 0) return [nothing(say('None since the agent started.'))];
  return [...node.events].reverse().map((event) =>
    entry(event.at, event.reason, event.severity === 'warning' ? 'bad' : 'good', event.message));
}

// ---- documents ----

const watcher = 'IntersectionObserver' in window ? new IntersectionObserver((entries) => {
  for (const seen of entries) {
    const card = cards.get(seen.target.dataset.uuid);
    if (!card) continue;
    card.visible = seen.isIntersecting;
    card.draw();
  }
}, { rootMargin: '200px' }) : null;

const isDriverProblem = (text) => text.startsWith('driver: ');

function nextStep() {
  const command = make('code', {}, 'gpulet doctor');
  return make('p', {}, ...aroundFirst(say('Next step: run {0} as root on the node, or in the agent’s Pod. It names the cause and the fix.', MARK), command),
    ' ', copyButton('gpulet doctor', () => command.textContent));
}

// Why there is no card, and what to do.
function whyEmpty() {
  const problem = node.problems.find(isDriverProblem);
  if (problem === 'driver: not read yet') return [make('p', {}, say('Waiting for the NVIDIA driver.'))];
  if (problem) return [make('p', {}, say('The NVIDIA driver does not answer, so no GPU is known.')), nextStep()];
  if (!node.driver.version) return [make('p', {}, say('This node has no NVIDIA GPU.'))];
  return [make('p', {}, say('The driver shows no GPU.')), nextStep()];
}

function claimLines() {
  const { waiting = [], moves = [] } = node.claims || {};
  const indexes = new Map(node.gpus.map((gpu) => [gpu.uuid, gpu.index]));
  return [...waiting.map((claim) => say('claim {0} is not prepared: {1}', `${claim.namespace}/${claim.name}`, claim.reason)),
          ...moves.map((move) => `GPU ${indexes.get(move.gpu) ?? move.gpu} ${move.reason}`)];
}

// The node's grade, and the containers that have a lower one.
function limitLines() {
  const limit = node.memory_limit;
  if (!limit) return [];
  const withReasons = ({ grade, reasons }) => [grade, ...reasons].join(' · ');
  return [say('memory limits of shared GPUs: {0}', withReasons(limit)),
          ...limit.containers.filter((one) => one.grade !== limit.grade)
            .map((one) => say('memory limit of container {0} of Pod {1}: {2}', one.container,
                              `${one.namespace}/${one.pod}`, withReasons(one)))];
}

function takeNode(next) {
  const before = new Map((node ? node.gpus : []).map((gpu) => [gpu.uuid, gpu.state]));
  node = next;
  const announcements = [];
  document.title = `${node.name} · GPUs · gpulet`;
  setText(byId('title'), say('GPUs of {0}', node.name));
  setText(byId('facts'), [say('{0} GPUs', node.gpus.length), node.driver.version && say('driver {0}', node.driver.version),
                          node.driver.cuda && `CUDA ${node.driver.cuda}`].filter(Boolean).join(' · '));
  setText(byId('version'), `gpulet ${node.version}`);
  byId('problems').hidden = node.problems.length === 0;
  redraw(byId('problems'), [node.problems, node.gpus.length > 0], () => node.problems.map((text) =>
    make('li', {}, text, ...(isDriverProblem(text) && node.gpus.length > 0 ? [nextStep()] : []))));
  const claims = claimLines();
  byId('claims').hidden = claims.length === 0;
  redraw(byId('claims'), claims, () => claims.map((text) => make('li', {}, text)));
  const limits = limitLines();
  byId('limits').hidden = limits.length === 0;
  redraw(byId('limits'), limits, () => limits.map((text) => make('li', {}, text)));
  byId('empty').hidden = node.gpus.length > 0;
  redraw(byId('empty'), [node.driver.version, node.problems.filter(isDriverProblem)], whyEmpty);
  const uuids = new Set();
  for (const gpu of node.gpus) {
    uuids.add(gpu.uuid);
    let card = cards.get(gpu.uuid);
    if (!card) {
      card = new Card(gpu.uuid);
      cards.set(gpu.uuid, card);
      card.element.dataset.uuid = gpu.uuid;
      if (watcher) watcher.observe(card.element);
    }
    card.update(gpu);
    if (before.has(gpu.uuid) && before.get(gpu.uuid) !== gpu.state) {
      announcements.push(say('GPU {0} is {1}', gpu.index, say(gpu.state)) + (gpu.reason ? `: ${gpu.reason}` : ''));
    }
  }
  for (const [uuid, card] of cards) {
    if (uuids.has(uuid)) continue;
    card.element.remove();
    card.tile.parentElement.remove();
    cards.delete(uuid);
  }
  // In the driver's order; one that is there already stays where it is.
  node.gpus.forEach((gpu, i) => {
    const card = cards.get(gpu.uuid);
    if (byId('cards').children[i] !== card.element) byId('cards').insertBefore(card.element, byId('cards').children[i] || null);
    const item = card.tile.parentElement || make('li', {}, card.tile);
    if (byId('tiles').children[i] !== item) byId('tiles').insertBefore(item, byId('tiles').children[i] || null);
  });
  redraw(byId('picture'), [node.links, node.gpus.map((gpu) => [gpu.index, gpu.numa, gpu.nvswitch_links, gpu.nvlinks, gpu.state])],
    () => node.gpus.length > 0 ? [picture()] : []);
  redraw(byId('matrix-table'), [node.links, node.gpus.map((gpu) => gpu.numa)], matrix);
  redraw(byId('timeline'), node.timeline, timelineItems);
  paintStrips(!isStale());
  showTraffic();
  redraw(byId('events'), node.events, eventItems);
  setText(byId('config'), node.config || '');
  if (announcements.length > 0) setText(byId('announcements'), announcements.join('. '));
}

let sampled = 0;  // when the last sample came, by this page's clock
let latest = null;
let use = null;  // the devices of the last /api/use

function show() {
  // One that the sample does not have could not be read: no number of it is known.
  for (const [uuid, card] of cards) card.sample({ at: latest.at, ...(latest.gpus || {})[uuid] });
  showTraffic();
}

function takeUse(document) {
  use = document.devices || {};
  for (const card of cards.values()) card.showUse();
}

function takeNow(sample) {
  sampled = performance.now();
  latest = sample;
  remember(sample);
  show();
  tellLink();
}

async function takeHistory() {
  try {
    const answer = await fetch('/api/history');
    if (!answer.ok) return;
    rememberPast((await answer.json()).samples);
    if (latest) show();
  } catch {
    // Shows why the events cannot be read; the lines begin with the next event.
  }
  await fetchTrends();
}

// ---- the live link ----

let link = 'wait', wait = FIRST_WAIT_MS, source = null;

const isSilent = () => link === 'live' && sampled > 0 && performance.now() - sampled > SILENT_MS;
// What is shown is old.
const isStale = () => link === 'lost' || isSilent();

function tellLink() {
  const texts = { wait: say('Connecting…'), lost: say('Connection lost; trying again'), busy: say('Too many watch: shown every few seconds') };
  const silent = isSilent(), stale = isStale();
  const text = silent ? say('No sample for {0} s', Math.round((performance.now() - sampled) / 1000))
    : link === 'live' ? say('Live') : texts[link];
  setText(byId('link'), stale && latest ? say('{0}. Last data: {1}', text, stamp(latest.at)) : text);
  setAttribute(byId('link'), 'data-link', silent ? 'lost' : link === 'busy' ? 'wait' : link);
  if (document.body.classList.contains('stale') !== stale) {
    document.body.classList.toggle('stale', stale);
    paintStrips(!stale);
  }
}

function setLink(state) {
  if ((link === 'lost') !== (state === 'lost')) {
    setText(byId('announcements'), state === 'lost' ? say('The connection to the node is lost') : state === 'live' ? say('Connected again') : '');
  }
  link = state;
  tellLink();
}

// Where no further watcher is let in, the documents are asked for now and then.
async function poll() {
  try {
    const [next, sample] = await Promise.all(['/api/node', '/api/now'].map(async (path) => {
      const answer = await fetch(path);
      if (!answer.ok) throw new Error(path);
      return answer.json();
    }));
    takeNode(next);
    takeNow(sample);
    const usage = await fetch('/api/use');
    if (usage.ok) takeUse(await usage.json());
    setLink('busy');
  } catch {
    setLink('lost');
  }
}

function connect() {
  source = new EventSource('/api/events');
  source.addEventListener('open', () => {
    wait = FIRST_WAIT_MS;
    setLink('live');
    takeHistory();
  });
  source.addEventListener('node', (event) => takeNode(JSON.parse(event.data)));
  source.addEventListener('now', (event) => takeNow(JSON.parse(event.data)));
  source.addEventListener('use', (event) => takeUse(JSON.parse(event.data)));
  source.addEventListener('error', async () => {
    if (source.readyState !== EventSource.CLOSED) return setLink('lost');  // the browser tries again by itself
    source.close();
    await poll();
    setTimeout(connect, wait + Math.random() * 500);
    wait = Math.min(MOST_WAIT_MS, wait * 2);
  });
}

function start() {
  makeRanges();
  byId('config-copy').append(copyButton(say('the config'), () => byId('config').textContent));
  watchRunbookLinks();
  setInterval(tellLink, 1000);
  setInterval(() => {
    paintStrips(!isStale());
    if (!document.hidden && (link === 'live' || link === 'busy')) fetchTrends();
  }, TRENDS_MS);
  connect();
}
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && latest) show();
});
learnWords('/chinese.json').finally(start);
