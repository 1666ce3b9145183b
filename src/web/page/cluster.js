// The cluster page: /api/cluster has every node, GPU, Pod and reason. Read again every few seconds; an unchanged
// document is not sent twice. The build serves this with common.js as one script.

const READ_MS = 5000;      // between two readings
const ROW_PX = 30;         // of a node, as in cluster.css
const SPARE_ROWS = 8;      // that are drawn beyond what is seen
const MOST_ROWS = 200;     // of any other list
const MODEL = 0, STATE = 1, BUSY = 2, MEMORY = 3, HELD = 4, SHARES_HELD = 5, SHARES = 6, NOT_OFFERED = 7, MIG = 8;  // of a GPU
const ASSUMED = 1, LEAVING = 2;  // flags of a Pod
const COLOURS = { busy: 'Use', held: 'Held', memory: 'Memory', health: 'Health' };
const AGENTS = { ready: 'reporting', silent: 'not reporting', unknown: 'unknown' };
const BAD_FIRST = ['lost', 'quarantined', 'draining', 'cordoned', 'recovering', 'degraded'];

let cluster = null;  // the last document
let nodes = [];      // of it: {index, node, gpus, text, pods, worst}
let shown = [];      // those that pass the filters
let filters = {};    // what the reader has set: text, namespace, its index, model, health
let chosen = null;   // name of a node
let etag = '';
let token = sessionStorage.getItem('token') || '';

const gpuTone = (gpu) => tone(cluster.states[gpu[STATE]]);
const mean = (values) => values.length > 0 ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
const share = (part, whole) => whole > 0 ? percent(100 * part / whole) : '–';
const podName = (pod) => `${cluster.namespaces[pod[0]]}/${pod[1]}`;

// ---- the document ----

function takeCluster(next) {
  cluster = next;
  const podsOf = next.nodes.map(() => []);
  for (const pod of next.pods) podsOf[pod[2]].push(pod);
  nodes = next.nodes.map((node, index) => {
    const states = new Set(node.gpus.map((gpu) => next.states[gpu[STATE]]));
    const pods = podsOf[index], models = [...new Set(node.gpus.map((gpu) => gpu[MODEL]))];
    return { index, node, pods, models, states, worst: BAD_FIRST.find((state) => states.has(state)),
             namespaces: new Set(pods.map((pod) => pod[0])),
             text: [node.name, ...pods.map((pod) => `${next.namespaces[pod[0]]}/${pod[1]}`), ...(node.faults || []).map((fault) => fault[1])].join('\n').toLowerCase() };
  });
  fillSelect('namespace', say('All namespaces'), [...new Set([...next.namespaces, ...next.pending.map((pod) => pod.namespace)])].sort().map((name) => [name, name]));
  fillSelect('model', say('All models'), next.models.map(([name], index) => [String(index), name]));
  fillSelect('health', say('Any health'), [...next.states.map((state) => [state, say(state)]), ['node-cordoned', say('node cordoned')], ['silent', say('agent not reporting')]]);
  byId('cluster').hidden = false;
  drawAll();
}

function fillSelect(id, all, options) {
  const select = byId(id), value = select.value;
  redraw(select, options, () => [make('option', { value: '' }, all), ...options.map(([key, text]) => make('option', { value: key }, text))]);
  select.value = options.some(([key]) => key === value) ? value : '';
}

function readFilters() {
  const namespace = byId('namespace').value;
  return { text: byId('find').value.trim().toLowerCase(), namespace, namespaceIndex: cluster.namespaces.indexOf(namespace),
           model: byId('model').value, health: byId('health').value };
}

function passes(one) {
  const { text, namespace, namespaceIndex, model, health } = filters;
  if (text && !one.text.includes(text)) return false;
  if (namespace && !one.namespaces.has(namespaceIndex)) return false;
  if (model && !one.models.includes(Number(model))) return false;
  if (health === 'node-cordoned') return Boolean(one.node.cordoned);
  if (health === 'silent') return one.node.agent === 'silent';
  return !health || one.states.has(health);
}

// ---- totals ----

function drawTotals() {
  const gpus = shown.flatMap((one) => one.node.gpus);
  const reporting = shown.filter((one) => one.node.agent !== 'silent').flatMap((one) => one.node.gpus);
  const sum = (key) => shown.reduce((total, one) => total + one.node[key], 0);
  const healthy = gpus.filter((gpu) => gpuTone(gpu) === 'good' || gpuTone(gpu) === 'grey' && cluster.states[gpu[STATE]] !== 'cordoned').length;
  const totals = [
    ['Nodes', String(shown.length)], ['GPUs', String(gpus.length)], ['Not healthy', String(gpus.length - healthy)],
    ['Use', percent(mean(reporting.map((gpu) => gpu[BUSY])))], ['Memory', percent(mean(reporting.map((gpu) => gpu[MEMORY])))],
    ['Held', percent(gpus.length > 0 ? mean(gpus.map((gpu) => gpu[HELD])) / 10 : null)],
    ['Free but fragmented', share(sum('fragmented'), sum('free'))],
    ['Not reporting', String(shown.filter((one) => one.node.agent === 'silent').length)],
    ['Pods', String(shown.reduce((total, one) => total + one.pods.length, 0))], ['Waiting Pods', String(cluster.pending.length + cluster.leftOut.pending)],
  ];
  redraw(byId('totals'), totals, () => totals.map(([name, value]) => make('div', {}, make('dt', {}, say(name)), make('dd', {}, value))));
  const left = cluster.leftOut;
  byId('left-out').hidden = left.nodes + left.pods + left.pending === 0;
  setText(byId('left-out'), say('Not shown: {0} nodes, {1} Pods, {2} waiting Pods', left.nodes, left.pods, left.pending));
}

// ---- the map of all GPUs ----

let places = { columns: 1, wide: 1, high: 1, cell: 1, perRow: 1 };

function drawMap() {
  const canvas = byId('map'), scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  const most = Math.max(1, ...shown.map((one) => one.node.gpus.length)), perRow = Math.min(8, most);
  const cell = shown.length > 1000 ? 4 : shown.length > 200 ? 7 : 14, gap = cell > 4 ? 2 : 1;
  const wide = perRow * (cell + gap) + cell, high = Math.ceil(most / perRow) * (cell + gap) + Math.max(3, cell / 2);
  const columns = Math.max(1, Math.floor(width / wide)), height = Math.ceil(shown.length / columns) * high;
  places = { columns, wide, high };
  canvas.width = Math.round(width * scale);
  canvas.height = Math.max(1, Math.round(height * scale));
  canvas.style.height = `${height}px`;
  const style = getComputedStyle(document.documentElement), pen = canvas.getContext('2d');
  const colours = Object.fromEntries(['good', 'flag', 'bad', 'mend', 'grey', 'held', 'line'].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  const by = byId('shade').value;
  pen.scale(scale, scale);
  shown.forEach((one, place) => {
    const x = place % columns * wide, y = Math.floor(place / columns) * high, dim = one.node.agent === 'silent' ? 0.3 : 1;
    one.node.gpus.forEach((gpu, i) => {
      const left = x + i % perRow * (cell + gap), top = y + Math.floor(i / perRow) * (cell + gap), look = gpuTone(gpu);
      // A fault shows whatever the colour stands for.
      const flat = by === 'health' || look === 'bad' || look === 'flag' || look === 'mend';
      pen.globalAlpha = dim * (flat ? 1 : 0.15 + 0.85 * (by === 'held' ? gpu[HELD] / 1000 : gpu[by === 'memory' ? MEMORY : BUSY] / 100));
      pen.fillStyle = flat ? colours[look] : colours.held;
      pen.fillRect(left, top, cell, cell);
    });
    if (one.node.cordoned) {
      pen.globalAlpha = 1;
      pen.fillStyle = colours.flag;
      pen.fillRect(x, y + high - 2, perRow * (cell + gap) - gap, 1);
    }
  });
  setText(byId('legend'), say('{0} nodes, a square for each GPU. Stronger: more {1}. Red: withdrawn. Brown: degraded, or a cordoned node’s line. Blue: recovering. Pale: the agent does not report.',
    shown.length, say(COLOURS[by]).toLowerCase()));
}

// ---- the table of nodes: only rows that are seen exist ----

const COLUMNS = ['Node', 'Agent', 'Model', 'GPUs', 'Use', 'Held', 'Fragmented', 'Health'];

function cells(one) {
  const strip = make('span', { class: 'cells', role: 'cell', 'aria-label': say('{0} GPUs, {1} in use', one.node.gpus.length, one.node.gpus.filter((gpu) => gpu[SHARES_HELD] > 0).length) });
  for (const gpu of one.node.gpus) {
    const part = make('i', { 'data-tone': gpuTone(gpu) });
    part.style.setProperty('--part', `${gpu[BUSY]}%`);
    strip.append(part);
  }
  return strip;
}

function nodeRow(one, place) {
  const { node } = one, cell = (...children) => make('span', { role: 'cell' }, ...children);
  const name = make('button', { type: 'button', class: 'name' }, node.name);
  name.addEventListener('click', () => choose(node.name));
  const marks = [one.worst && say(one.worst), node.cordoned && say('node cordoned')].filter(Boolean).join(', ') || say('healthy');
  const row = make('div', { class: 'row', role: 'row', 'aria-rowindex': String(place + 2), 'data-node': node.name }, cell(name), cell(say(AGENTS[node.agent])),
    cell(one.models.map((model) => cluster.models[model][0]).join(', ')), cells(one), cell(percent(mean(node.gpus.map((gpu) => gpu[BUSY])))),
    cell(percent(node.gpus.length > 0 ? mean(node.gpus.map((gpu) => gpu[HELD])) / 10 : null)), cell(share(node.fragmented, node.free)),
    cell(marks));
  if (node.agent === 'silent') row.classList.add('silent');
  if (node.name === chosen) row.classList.add('chosen');
  row.style.top = `${place * ROW_PX}px`;
  return row;
}

function drawNodes() {
  const table = byId('nodes'), space = table.querySelector('.space');
  space.style.height = `${shown.length * ROW_PX}px`;
  table.setAttribute('aria-rowcount', String(shown.length + 1));
  const first = Math.max(0, Math.floor(table.scrollTop / ROW_PX) - SPARE_ROWS);
  const rows = shown.slice(first, first + Math.ceil(table.clientHeight / ROW_PX) + 2 * SPARE_ROWS);
  // A row in which a reader is stays as it is until its values change.
  redraw(space, [first, chosen, rows.map((one) => one.node), words.Node], () => rows.map((one, i) => nodeRow(one, first + i)));
  setText(byId('node-count'), say('{0} of {1} nodes', shown.length, nodes.length));
}

function choose(name) {
  chosen = name;
  drawNodes();
  drawDetail();
  byId('detail').scrollIntoView({ block: 'nearest' });
}

function holds(pod) {
  return pod[4].map(([resource, count]) => `${count} ${cluster.resources[resource]}`).join(', ');
}

// What the GPUs that a Pod holds do; of a shared GPU that is the use of all who share it.
function podRow(pod, withNode) {
  const { node } = nodes[pod[2]], gpus = pod[5].map((index) => node.gpus[index]);
  const shared = gpus.some((gpu) => gpu[SHARES_HELD] > 1);
  const memory = gpus.reduce((sum, gpu) => sum + gpu[MEMORY] / 100 * cluster.models[gpu[MODEL]][1] * 2 ** 20, 0);
  const notes = [pod[3] & ASSUMED && say('not started'), pod[3] & LEAVING && say('being deleted'), shared && say('shared GPU')].filter(Boolean).join(', ');
  return make('tr', {}, make('th', { scope: 'row' }, withNode ? pod[1] : podName(pod)), ...(withNode ? [make('td', {}, node.name)] : []), make('td', {}, holds(pod)),
    make('td', {}, pod[5].map((index) => `GPU ${index}`).join(', ')), make('td', {}, percent(mean(gpus.map((gpu) => gpu[BUSY])))), make('td', {}, gib(memory)), make('td', {}, notes));
}

function dataTable(label, heads, rows) {
  const head = make('thead', {}, make('tr', {}, ...heads.map((text) => make('th', { scope: 'col' }, say(text)))));
  return make('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': label }, make('table', {}, head, make('tbody', {}, ...rows)));
}

// What follows a list that is cut.
function more(name, all) {
  return all.length > MOST_ROWS ? [make(name, { class: 'soft' }, say('and {0} more: use the filters', all.length - MOST_ROWS))] : [];
}

// `of`: a node or a namespace.
function podTable(pods, of, withNode) {
  const heads = ['Pod', ...(withNode ? ['Node'] : []), 'Holds', 'GPUs', 'Use', 'Memory', 'State'];
  return [dataTable(say('Pods of {0}', of), heads, pods.slice(0, MOST_ROWS).map((pod) => podRow(pod, withNode))), ...more('p', pods)];
}

function migText(gpu) {
  if (gpu[MIG]) return gpu[MIG].map(([profile, held, devices]) => `${profile} ${held}/${devices}`).join(', ');
  return gpu[SHARES] > 1 ? say('{0} of {1} shares', gpu[SHARES_HELD], gpu[SHARES]) : '–';
}

function drawDetail() {
  const one = nodes.find((other) => other.node.name === chosen), detail = byId('detail');
  detail.hidden = !one;
  if (!one) return;
  redraw(detail, [one.node, one.pods, words.Node], () => {
    const { node } = one, reasons = new Map();
    for (const [gpu, reason] of node.faults || []) reasons.set(gpu, [...(reasons.get(gpu) || []), reason]);
    const rows = node.gpus.map((gpu, i) => make('tr', {}, make('th', { scope: 'row' }, `GPU ${i}`), make('td', {}, cluster.models[gpu[MODEL]][0]),
      make('td', { class: 'reason' }, say(cluster.states[gpu[STATE]]) + (reasons.has(i) ? `: ${reasons.get(i).join('; ')}` : '')),
      make('td', {}, percent(gpu[BUSY])), make('td', {}, percent(gpu[MEMORY])), make('td', {}, migText(gpu)), make('td', {}, gpu[NOT_OFFERED] > 0 ? String(gpu[NOT_OFFERED]) : '–')));
    const heads = ['GPU', 'Model', 'Health', 'Use', 'Memory', 'MIG and shares', 'Not offered'];
    const facts = [say('driver {0}', node.driver), say(AGENTS[node.agent]), node.cordoned && say('node cordoned')].filter(Boolean).join(' · ');
    const page = node.page && /^https?:\/\//.test(node.page) ? [make('a', { href: node.page, rel: 'noreferrer', id: 'node-page' }, say('Page of this node'))] : [];
    return [make('h3', {}, node.name), make('p', { class: 'soft' }, facts), ...page,
      dataTable(say('GPUs of {0}', node.name), heads, rows),
      ...(one.pods.length > 0 ? podTable(one.pods, node.name, false) : [make('p', { class: 'soft' }, say('No Pod holds a GPU here.'))])];
  });
}

// ---- waiting Pods, faults, namespaces ----

function reasonList(pod) {
  if (pod.fits === null) return [make('p', {}, say('Too many different requests wait to check this one; see gpulet explain.'))];
  const all = [];
  if (pod.nominated) all.push(make('p', {}, say('Room is made on {0}', pod.nominated)));
  if (pod.fits > 0) all.push(make('p', {}, say('Nodes that it fits on: {0}. Something else than GPUs keeps it, or its scheduler has not tried yet.', pod.fits)));
  else if (pod.rejected === 0) all.push(make('p', {}, say('No node publishes what it asks for')));
  if (pod.reasons.length > 0) {
    all.push(make('ul', {}, ...pod.reasons.map(([reason, count, first]) =>
      make('li', {}, `${count > 1 ? say('{0} and {1} more', first, count - 1) : first}: ${reason}`))));
  }
  return all;
}

async function explain(pod, item) {
  const answer = await ask(`api/explain?namespace=${encodeURIComponent(pod.namespace)}&pod=${encodeURIComponent(pod.name)}`);
  const text = answer ? await answer.text().catch(() => say('no answer')) : say('no answer');
  const old = item.querySelector('pre');
  if (old) old.remove();
  item.append(make('pre', { tabindex: '0' }, text));
}

function pendingItem(pod) {
  const button = make('button', { type: 'button', 'aria-label': say('Explain {0}', `${pod.namespace}/${pod.name}`) }, say('Explain'));
  const item = make('li', { 'data-tone': pod.fits > 0 ? 'flag' : 'bad' }, make('strong', {}, `${pod.namespace}/${pod.name}`), ' · ', pod.asks, ' · ', button, ...reasonList(pod));
  button.addEventListener('click', () => explain(pod, item));
  return item;
}

function drawPending() {
  const { namespace, text } = filters;
  const pods = cluster.pending.filter((pod) => (!namespace || pod.namespace === namespace) &&
    (!text || [`${pod.namespace}/${pod.name}`, ...(pod.reasons || []).flatMap((reason) => [reason[0], reason[2]])].join('\n').toLowerCase().includes(text)));
  limitedList('pending', pods, pendingItem, say('No Pod waits for a GPU.'));
}

function limitedList(id, all, item, none) {
  redraw(byId(id), [all.slice(0, MOST_ROWS), all.length, words.Node], () => all.length === 0 ? [make('li', { class: 'soft' }, none)]
    : [...all.slice(0, MOST_ROWS).map(item), ...more('li', all)]);
}

function drawFaults() {
  const all = [];
  for (const { node } of shown) {
    if (node.agent === 'silent') all.push([node.name, say('the agent does not report: what is shown of the node is old'), 'flag']);
    if (node.cordoned) all.push([node.name, say('node cordoned'), 'grey']);
    for (const [gpu, reason] of node.faults || []) all.push([node.name, `GPU ${gpu}: ${reason}`, tone(cluster.states[node.gpus[gpu][STATE]])]);
  }
  limitedList('faults', all, ([name, text, look]) => {
    const button = make('button', { type: 'button' }, name);
    button.addEventListener('click', () => choose(name));
    return make('li', { 'data-tone': look }, button, ' · ', text);
  }, say('None.'));
}

const open = new Set();  // namespaces

function drawPods() {
  const { namespace, text } = filters, groups = new Map();
  for (const one of shown) {
    // Where the text is that of the node, all its Pods are meant.
    const whole = !text || one.node.name.toLowerCase().includes(text) || (one.node.faults || []).some((fault) => fault[1].toLowerCase().includes(text));
    for (const pod of one.pods) {
      const key = cluster.namespaces[pod[0]];
      if ((namespace && key !== namespace) || (!whole && !podName(pod).toLowerCase().includes(text))) continue;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(pod);
    }
  }
  const sorted = [...groups].sort((a, b) => b[1].length - a[1].length || (a[0] < b[0] ? -1 : 1));
  const facts = sorted.map(([key, pods]) => {
    const gpus = pods.flatMap((pod) => pod[5].map((index) => nodes[pod[2]].node.gpus[index]));
    return [key, pods.length, new Set(pods.flatMap((pod) => pod[5].map((index) => `${pod[2]} ${index}`))).size, percent(mean(gpus.map((gpu) => gpu[BUSY])))];
  });
  // What an open namespace shows of its Pods.
  const opened = sorted.filter(([key]) => open.has(key)).map(([, pods]) => pods.slice(0, MOST_ROWS).map((pod) => {
    const { node } = nodes[pod[2]];
    return [pod, node.name, pod[5].map((index) => node.gpus[index])];
  }));
  redraw(byId('pods'), [facts, opened, words.Node], () => sorted.length === 0 ? [make('p', { class: 'soft' }, say('No Pod holds a GPU.'))]
    : sorted.slice(0, MOST_ROWS).map(([key, pods], i) => {
      const element = make('details', { 'data-namespace': key }, make('summary', {}, make('strong', {}, key), ' · ', say('Pods: {0}, GPUs: {1}, use: {2}', ...facts[i].slice(1))));
      const fill = () => element.append(...podTable(pods, key, true));
      if (open.has(key)) {
        element.open = true;
        fill();
      }
      element.addEventListener('toggle', () => {
        if (element.open && !open.has(key)) fill();
        if (element.open) open.add(key); else open.delete(key);
        if (!element.open) [...element.children].slice(1).forEach((child) => child.remove());
      });
      return element;
    }));
}

function drawAll() {
  if (!cluster) return;
  filters = readFilters();
  shown = nodes.filter(passes);
  drawTotals();
  drawMap();
  drawNodes();
  drawPending();
  drawFaults();
  drawDetail();
  drawPods();
}

// ---- reading ----

function setLink(state, text) {
  setText(byId('link'), text);
  if (byId('link').dataset.link !== state && state !== 'wait') setText(byId('announcements'), text);
  setAttribute(byId('link'), 'data-link', state);
}

function lostLink() {
  setLink('lost', say('Connection lost; trying again'));
}

// Null: no answer, or none that this reader may see.
async function ask(path, headers = {}) {
  try {
    const answer = await fetch(path, { headers: { ...headers, ...(token ? { Authorization: `Bearer ${token}` } : {}) } });
    if (answer.status !== 401 && answer.status !== 403) return answer;
    const refusal = token ? (await answer.text()).trim() : '';
    byId('sign-in').hidden = false;
    setText(byId('refusal'), refusal || say('This page needs a token of the cluster.'));
    setLink('lost', say('Not signed in'));
  } catch {
    lostLink();
  }
  return null;
}

async function read() {
  const answer = document.hidden && cluster ? null : await ask('api/cluster', etag ? { 'If-None-Match': etag } : {});
  if (!answer) return;
  try {
    if (answer.ok) {
      takeCluster(await answer.json());
      etag = answer.headers.get('ETag') || '';
    }
    if (answer.ok || answer.status === 304) {
      byId('sign-in').hidden = true;
      setLink('live', say('Read {0}', new Date().toLocaleTimeString()));
    } else {
      setLink('wait', (await answer.text()).trim());
    }
  } catch {
    lostLink();  // in the middle of the answer
  }
}

let next = null;
async function readOn() {
  clearTimeout(next);
  await read();
  clearTimeout(next);
  if (byId('sign-in').hidden) next = setTimeout(readOn, READ_MS);
}

function start() {
  document.title = `${say('GPUs of the cluster')} · gpulet`;
  for (const [value, text] of Object.entries(COLOURS)) byId('shade').append(make('option', { value }, say(text)));
  byId('find').placeholder = say('node, Pod, reason');
  const table = byId('nodes');
  table.append(make('div', { class: 'row head', role: 'row', 'aria-rowindex': '1' }, ...COLUMNS.map((name) => make('span', { role: 'columnheader' }, say(name)))),
    make('div', { class: 'space', role: 'rowgroup' }));
  table.addEventListener('scroll', () => requestAnimationFrame(drawNodes));
  byId('filters').addEventListener('input', drawAll);
  byId('filters').addEventListener('submit', (event) => event.preventDefault());
  byId('sign-in').addEventListener('submit', (event) => {
    event.preventDefault();
    token = byId('token').value.trim();
    sessionStorage.setItem('token', token);
    byId('token').value = '';
    readOn();
  });
  byId('map').addEventListener('click', (event) => {
    const column = Math.floor(event.offsetX / places.wide), one = shown[Math.floor(event.offsetY / places.high) * places.columns + column];
    if (column < places.columns && one) choose(one.node.name);
  });
  window.addEventListener('resize', drawAll);
  document.addEventListener('visibilitychange', () => { if (!document.hidden) readOn(); });
  readOn();
}

learnWords('chinese.json', 'cluster-chinese.json').finally(start);
