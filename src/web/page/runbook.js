// The runbook of docs/health.md and the XIDs of docs/xids.md, which the agent serves with the page: what an XID or
// a fault links to. A part of /page.js.

// The runbook's section of an XID's class, by the last column of docs/xids.md. None: nothing to do.
const XID_SECTIONS = { 'gpu-reset': 'xid-reset', reboot: 'xid-reboot', vm: 'xid-vm', nvlink: 'xid-nvlink', nvlink5: 'xid-nvlink',
                       'ecc-wf': 'xid-ecc', fw: 'xid-support', support: 'xid-support', unclassified: 'xid-support',
                       'check-uvm': 'xid-reset', app: 'application-repeat' };

// A text of the agent, its XIDs as links to the runbook.
function linkXids(text) {
  return text.split(/(\bXIDs? \d+\b)/).map((part) => {
    const found = /^XIDs? (\d+)$/.exec(part);
    return found ? make('a', { href: `#xid-${found[1]}` }, part) : part;
  });
}

// Markdown of one line: code, bold and the texts of links.
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)]*\))/).map((part) => {
    if (part.startsWith('`')) return make('code', {}, part.slice(1, -1));
    if (part.startsWith('**')) return make('strong', {}, part.slice(2, -2));
    const link = /^\[([^\]]+)\]\((?:#([\w-]+))?[^)]*\)$/.exec(part);
    if (link && link[2] && sections.has(link[2])) return make('a', { href: `#runbook-${link[2]}` }, link[1]);
    return link ? link[1] : part;
  });
}

const sections = new Map();  // name of a fault's class → its paragraphs; '': what precedes them
const xids = new Map();      // code → {name, meaning, action, section}
let reading = null;

async function readRunbook() {
  const [runbook, table] = await Promise.all(['/runbook.md', '/xids.md'].map(async (path) => {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error(path);
    return answer.text();
  }));
  const [first, ...rest] = runbook.trim().split(/^### /m);
  const paragraphs = (text) => text.split(/\n\s*\n/).map((one) => one.replace(/\s+/g, ' ').trim()).filter(Boolean);
  sections.set('', paragraphs(first.replace(/^## .*$/m, '')));
  for (const part of rest) {
    const end = part.indexOf('\n');
    sections.set(part.slice(0, end).trim(), paragraphs(part.slice(end)));
  }
  for (const line of table.split('\n')) {
    const cells = line.split('|').map((cell) => cell.trim());
    if (cells.length !== 7 || !/^\d+$/.test(cells[1])) continue;
    xids.set(cells[1], { name: cells[2], meaning: cells[3], action: cells[4], section: XID_SECTIONS[cells[5]] });
  }
  const article = ([name, texts]) => make('article', { id: name ? `runbook-${name}` : 'runbook-first', tabindex: '-1' },
    ...(name ? [make('h3', {}, name)] : []), ...texts.map((text) => make('p', {}, ...inline(text))));
  byId('runbook-text').replaceChildren(...[...sections].map(article));
}

function loadRunbook() {
  if (!reading) reading = readRunbook().catch(() => { reading = null; });
  return reading;
}

// What is known of an XID, before the section that says what to do.
function showXid(code) {
  const xid = xids.get(code);
  const section = xid ? xid.section : 'xid-unknown';
  byId('xid').replaceChildren(make('h3', {}, `XID ${code}${xid ? `: ${xid.meaning}` : ''}`),
    ...(xid ? [make('p', {}, make('span', { class: 'mono' }, xid.name), xid.action ? ` · ${say('NVIDIA’s action: {0}', xid.action)}` : '')] : []),
    ...(section ? (sections.get(section) || []).map((text) => make('p', { lang: 'en' }, ...inline(text))) : [make('p', {}, say('Nothing has to be done.'))]),
    ...(section ? [make('p', {}, make('a', { href: `#runbook-${section}` }, say('Runbook: {0}', section)))] : []));
  byId('xid').hidden = false;
  return byId('xid');
}

// Opens the runbook where the address says: #xid-79 or #runbook-xid-reboot.
async function followRunbookLink(hash) {
  const found = /^#(xid|runbook)-([\w-]+)$/.exec(hash);
  if (!found) return;
  byId('runbook').open = true;
  await loadRunbook();
  const target = found[1] === 'xid' ? showXid(found[2]) : byId(hash.slice(1));
  if (!target) return;
  target.scrollIntoView({ block: 'start' });
  target.focus({ preventScroll: true });
}

function watchRunbookLinks() {
  byId('runbook').addEventListener('toggle', loadRunbook);
  document.addEventListener('click', (event) => {
    const link = event.target.closest('a[href^="#xid-"], a[href^="#runbook-"]');
    if (link) followRunbookLink(link.getAttribute('href'));
  });
  window.addEventListener('popstate', () => followRunbookLink(location.hash));
  followRunbookLink(location.hash);
}
