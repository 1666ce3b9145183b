// Who uses a GPU: its Pods with their memory and busy time, and its processes. A part of /page.js.

const MOST_PROCESSES = 50;  // of a GPU

const holderText = (holder) => `${holder.namespace}/${holder.pod} · ${holder.container}`;

// The devices of a GPU: itself and its MIG devices, as [uuid, what precedes their names].
function devicesOf(gpu) {
  return [[gpu.uuid, ''], ...(gpu.mig ? gpu.mig.devices.map((device) => [device.uuid, `${device.profile} @${device.start}: `]) : [])];
}

// The rows of Pods: from the sample, or where it has none yet from who holds the devices.
function podRows(gpu, use) {
  const rows = [];
  for (const [uuid, device] of devicesOf(gpu)) {
    const used = use && use[uuid];
    const pods = used ? used.pods : [];
    for (const pod of pods) {
      rows.push({ text: device + withShares(`${pod.namespace}/${pod.pod} · ${pod.containers.join(', ')}`, pod.shares), values: [gib(pod.memory), percent(pod.busy)] });
    }
    const inSample = new Set(pods.map((pod) => `${pod.namespace}/${pod.pod}`));
    const counts = new Map();
    for (const holder of gpu.holders.filter((one) => one.uuid === uuid && !inSample.has(`${one.namespace}/${one.pod}`))) {
      counts.set(holderText(holder), (counts.get(holderText(holder)) || 0) + 1);
    }
    for (const [text, count] of counts) rows.push({ text: device + withShares(text, count), values: [gib(null), percent(null)] });
    if (used && used.rest && (used.rest.memory > 0 || used.rest.busy >= 0.5) && (pods.length > 0 || used.processes.length > 0)) {
      rows.push({ text: device + say('of no Pod'), values: [gib(used.rest.memory), percent(used.rest.busy)] });
    }
  }
  return rows;
}
const withShares = (text, count) => count > 1 ? say('{0} ({1} shares)', text, count) : text;

function processRows(gpu, use) {
  const rows = [];
  for (const [uuid, device] of devicesOf(gpu)) {
    for (const one of (use && use[uuid] ? use[uuid].processes : [])) {
      const pod = one.pod ? `${one.namespace}/${one.pod}` : say('of no known Pod');
      rows.push({ text: `${device}${one.pid}${one.name ? ` ${one.name}` : ''} · ${pod}`, values: [gib(one.memory), percent(one.sm)] });
    }
  }
  return rows;
}

// A table that keeps its rows while their texts stay, so that a sample changes only numbers.
class UseTable {
  constructor(caption, head, body) {
    this.body = make('tbody', body);
    this.element = make('table', { class: 'use' }, make('caption', { class: 'unseen' }, caption),
      make('thead', {}, make('tr', {}, ...[head, say('Memory'), say('Busy')].map((text) => make('th', { scope: 'col' }, text)))), this.body);
  }

  show(rows) {
    this.element.hidden = rows.length === 0;
    redraw(this.body, rows.map((row) => row.text), () => rows.map((row) => make('tr', {},
      make('th', { scope: 'row' }, row.text), ...row.values.map((value) => make('td', {}, value)))));
    rows.forEach((row, i) => row.values.forEach((value, k) => setText(this.body.rows[i].cells[k + 1], value)));
  }
}

class Usage {
  constructor() {
    this.nobody = make('p', { class: 'soft' });
    this.pods = new UseTable(say('Use by Pod'), say('Pod · container'), { class: 'holders' });
    this.processes = new UseTable(say('Processes'), say('Process'), { class: 'processes' });
    this.processHead = make('h4', {}, say('Processes'));
    this.more = make('p', { class: 'soft' });
    this.element = make('div', {}, make('h4', {}, say('Held by')), this.nobody, this.pods.element, this.processHead, this.processes.element, this.more);
  }

  // `use`: the devices of /api/use; null before the first.
  show(gpu, use, latest) {
    const pods = podRows(gpu, use), processes = processRows(gpu, use);
    this.pods.show(pods);
    this.processes.show(processes.slice(0, MOST_PROCESSES));
    this.processHead.hidden = processes.length === 0;
    this.more.hidden = processes.length <= MOST_PROCESSES;
    setText(this.more, say('{0} more processes', processes.length - MOST_PROCESSES));
    this.nobody.hidden = pods.length > 0;
    const busy = processes.length === 0 && latest && latest.util >= 5;
    setText(this.nobody, processes.length > 0 ? say('No Pod') : busy ? say('No Pod; the driver names no process that uses it') : say('Nobody'));
  }
}
