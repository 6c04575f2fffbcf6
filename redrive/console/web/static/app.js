// The pages' own script: commands to the API, live updates, keyboard, relative times. The pages can be read without it.

const body = document.body;
const csrf = document.querySelector('meta[name="csrf-token"]')?.content ?? "";
const find = (selector, within = document) => within.querySelector(selector);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

function toast(text, kind) {
  const note = document.createElement("p");
  note.className = kind;
  note.textContent = text;
  find("#toasts").append(note);
  setTimeout(() => note.remove(), kind === "bad" ? 12000 : 5000);
}

// Commands: a form with data-api is sent to the API as JSON. The API decides; what it says is shown.

function fieldsOf(form) {
  const fields = {};
  for (const [name, value] of new FormData(form)) {
    const named = form.elements[name];
    const element = named instanceof RadioNodeList ? named[0] : named;
    if (value === "" || element.hasAttribute("data-draft")) continue;
    if (element.hasAttribute("data-list")) {
      (fields[name] ??= []).push(value);
      continue;
    }
    if (element.hasAttribute("data-labels")) {
      fields[name] = labelsOf(value);
      continue;
    }
    fields[name] = element.hasAttribute("data-json") ? JSON.parse(value) : value;
  }
  return fields;
}

// "mission_id=42, stage_id=2"; the API refuses what is not a label, with its name.
function labelsOf(text) {
  const pairs = text.split(/[\s,]+/).filter(Boolean).map((pair) => pair.split(/=(.*)/s));
  return Object.fromEntries(pairs.map(([name, value]) => [name, value ?? ""]));
}

async function send(form) {
  const headers = { "Content-Type": "application/json", "X-CSRF-Token": csrf };
  for (const field of all("[data-header]", form)) if (field.value) headers[field.dataset.header] = field.value;
  if (form.dataset.version) headers["If-Match"] = `"${form.dataset.version}"`;
  const answer = await fetch(form.dataset.api, { method: "POST", headers, body: JSON.stringify(fieldsOf(form)) });
  const said = await answer.json().catch(() => ({}));
  if (said.code === "APPROVAL_NEEDED") return { approval: form.elements.plan_hash.value };
  if (said.code === "approval_needed") return { message: "It waits for another admin. Once it is approved, either of you starts it here." };
  const isAnswer = said.code === "command_refused";
  // This command has its answer: what is sent next is another one.
  if (isAnswer) form.elements.request_id.value += "+";
  const words = [said.detail ?? `The console answered ${answer.status}`, said.action].filter(Boolean).join(" – ");
  if (!answer.ok) throw Object.assign(new Error(words), { isAnswer });
  return said;
}

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.matches("[data-filters]")) all("input, select", form).forEach((field) => (field.disabled = field.value === ""));
  if (!form.matches("[data-api]")) return;
  event.preventDefault();
  // A form whose plan is asked for while it is incomplete has `novalidate`: it must be complete to be sent.
  if (!form.reportValidity()) return;
  if (form.dataset.confirm && !confirm(form.dataset.confirm)) return;
  const button = find("[type=submit]", form);
  button.disabled = true;
  find(".refusal", form)?.remove();
  try {
    done(form, await send(form));
  } catch (error) {
    refuse(form, error);
  } finally {
    button.disabled = false;
  }
});

function done(form, said) {
  if (said.approval) return location.assign(`/bulk/approvals/${said.approval}`);
  if (said.run_id && form.dataset.then) return location.assign(form.dataset.then + said.run_id);
  if (form.dataset.back) return location.assign(form.dataset.back);
  toast(said.message ?? form.dataset.done, "good");
  const secret = find(".secret", form);
  if (secret) {
    secret.textContent = said[form.dataset.secret];
    secret.hidden = false;
  }
  if (said.bulk_id && !location.pathname.endsWith(said.bulk_id)) location.assign(`/bulk/${said.bulk_id}`);
  settle(form);
}

function settle(form) {
  form.classList.remove("dirty");
  document.activeElement?.blur();
  changed();
}

function refuse(form, error) {
  // The record may have changed with the refusal. A form that holds little is drawn again; an edit is left as it is.
  const isEdited = all("textarea", form).some((field) => field.value !== field.defaultValue);
  if (error.isAnswer && !isEdited) {
    toast(error.message, "bad");
    settle(form);
    return;
  }
  const note = document.createElement("p");
  note.className = "refusal error";
  note.setAttribute("role", "alert");
  note.textContent = error.message;
  form.append(note);
}

// The plan of a replay follows its form; an edit cannot be sent before it was looked at.

let planning;
function plan(form, wait) {
  clearTimeout(planning);
  planning = setTimeout(() => form.dispatchEvent(new Event("plan")), wait);
}

const isPlanned = (field) => field.closest("form[data-planned]") && !["reason", "allow_unsafe"].includes(field.name);

document.addEventListener("input", (event) => {
  const form = event.target.closest("form[data-api]");
  form?.classList.add("dirty");
  if (!isPlanned(event.target)) return;
  find("[type=submit]", form).disabled = true;
  plan(form, 350);
});
document.addEventListener("change", (event) => {
  if (event.target.matches("[data-filters] select, [data-submit]")) event.target.form.requestSubmit();
  if (event.target.matches("[name=letter]")) pick();
});
document.addEventListener("toggle", (event) => {
  const draft = event.target.matches?.("details.edit") && find("[data-draft]", event.target);
  if (!draft) return;
  draft.disabled = !event.target.open;
  plan(draft.form, 0);
}, true);

// Selected rows go to the form that acts on them.

function pick() {
  const form = find("#picked");
  if (!form) return;
  form.hidden = !find("input[name=letter]");
  const boxes = all("input[name=letter]:checked");
  const tenants = new Set(boxes.map((box) => box.dataset.tenant).filter(Boolean));
  const note = find("[data-picked]", form);
  find("[type=submit]", form).disabled = !boxes.length || tenants.size > 1;
  note.hidden = !boxes.length;
  note.textContent = tenants.size > 1 ? `${boxes.length} selected, of ${tenants.size} tenants: select those of one` : `${boxes.length} selected:`;
  if (tenants.size === 1) form.elements.tenant.value = [...tenants][0];
}

// Live regions: when something changed, the page is asked for once more, and its live parts take the place of the old
// ones. What somebody writes in stays. In a storm of changes this happens every two seconds.

const pause = 2000;
let asked = 0;
let waiting;

function changed() {
  waiting ??= setTimeout(() => {
    waiting = undefined;
    asked = Date.now();
    // The stream tells when the console is back.
    refresh().catch(() => {});
  }, Math.max(300, asked + pause - Date.now()));
}

async function refresh() {
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (answer.redirected) location.assign(answer.url);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const region of all("[data-live]")) {
    const fresh = page.getElementById(region.id);
    if (fresh && !isBusy(region)) replace(region, document.adoptNode(fresh));
  }
  pick();
}

const isBusy = (region) => find("form.dirty", region) || (region.matches(".commands") && region.contains(document.activeElement));

function replace(region, fresh) {
  const isOpen = new Set(all("details[open] > summary", region).map((summary) => summary.textContent));
  const picked = new Set(all("input[name=letter]:checked", region).map((box) => box.value));
  const current = find("[data-row].current", region)?.dataset.row;
  all("details > summary", fresh).forEach((summary) => (summary.parentElement.open ||= isOpen.has(summary.textContent)));
  all("input[name=letter]", fresh).forEach((box) => (box.checked = picked.has(box.value)));
  all("[data-row]", fresh).forEach((row) => row.classList.toggle("current", row.dataset.row === current));
  region.replaceWith(fresh);
  htmx.process(fresh);
}

// No event tells of retries, of steps that end and of new rows of an outbox: where these are shown they are looked at, while somebody looks.

setInterval(() => {
  if (find("[data-moving]") && !document.hidden) changed();
}, 5000);

body.addEventListener("htmx:configRequest", (event) => (event.detail.headers["X-CSRF-Token"] = csrf));
body.addEventListener("htmx:afterSettle", (event) => {
  const planned = event.target.closest(".planned");
  if (!planned) return;
  const button = find("[type=submit]", planned.closest("form"));
  button.disabled = Boolean(find("[data-unreadable]", planned));
  button.dataset.doing ??= button.textContent;
  button.textContent = find("[data-asks]", planned) ? button.dataset.asking : button.dataset.doing;
});
body.addEventListener("htmx:responseError", (event) => {
  const form = event.detail.elt.closest?.("form[data-planned]");
  if (form) find(".planned", form).textContent = "There is no plan: the console answered " + event.detail.xhr.status;
  const gone = event.detail.xhr.status === 404 ? "Temporal has forgotten this run." : "The run did not answer: is a worker running?";
  if (event.detail.elt.matches?.(".contents > div")) event.detail.elt.textContent = gone;
});

function listen() {
  const light = find("#live");
  if (!light) return;
  const tenant = new URLSearchParams(location.search).get("tenant");
  const source = new EventSource("/api/v1/events" + (tenant ? `?tenant=${encodeURIComponent(tenant)}` : ""));
  source.addEventListener("open", () => (light.dataset.state = "on"));
  source.addEventListener("error", () => {
    light.dataset.state = "off";
    // The browser connects again by itself, unless the console refused: it is starting, or nobody is signed in any more.
    if (source.readyState === EventSource.CLOSED) setTimeout(listenAgain, 5000);
  });
  source.addEventListener("change", changed);
  source.addEventListener("bulk", changed);
  // The first one says that the stream begins: what changed since the page was made is not in it.
  source.addEventListener("resync", changed);
  addEventListener("pagehide", () => source.close());
}

function listenAgain() {
  if (!find("form.dirty")) changed();
  listen();
}

// Keyboard: j k x enter / ?

function move(by) {
  const rows = all("[data-rows] > [data-row]");
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.matches(".current"));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
  rows.forEach((row) => row.classList.toggle("current", row === next));
  next.scrollIntoView({ block: "nearest" });
}

const keys = {
  j: () => move(1),
  k: () => move(-1),
  x: () => find("[data-row].current input[type=checkbox]")?.click(),
  Enter: () => find("[data-row].current [data-open]")?.click(),
  "/": () => find("[data-search]")?.focus(),
  "?": () => find("#keys")?.showModal(),
};

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input:not([type=checkbox]), textarea, select");
  if (isTyping && event.key === "Escape") event.target.blur();
  // The button of a dialog that was just closed has the focus for a moment longer.
  const isGone = event.target.closest("dialog:not([open])");
  const isPressed = event.key === "Enter" && event.target.matches("a, button, summary, input") && !isGone;
  if (isTyping || isPressed || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key] || find("dialog[open]")) return;
  event.preventDefault();
  keys[event.key]();
});

// Times since a moment go on while the page is open.

const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
setInterval(() => {
  for (const time of all("time")) {
    const seconds = (Date.now() - new Date(time.dateTime)) / 1000;
    const size = Math.abs(seconds);
    if (size < 1) continue;
    const [length, unit] = units.find(([length]) => size >= length);
    const text = `${Math.floor(size / length)} ${unit}`;
    time.textContent = seconds > 0 ? `${text} ago` : `in ${text}`;
  }
}, 5000);

find(".bar nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
listen();
