// Filters the list of streams, sends a form to Airflow's own API with the rights of whoever is logged in, and opens pages of
// Airflow around its frame.
"use strict";

const root = new URL(document.currentScript.src).pathname.replace(/\/ckpt\/static\/page\.js$/, "");

async function call(method, path, body) {
  const answer = await fetch(`${root}/api/v2${path}`, {
    method,
    credentials: "same-origin",
    headers: { "Content-Type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  let said = {};
  try { said = await answer.json(); } catch { /* an answer without a document */ }
  if (!answer.ok) {
    const detail = typeof said.detail === "string" ? said.detail : JSON.stringify(said.detail ?? said);
    throw new Error(`Airflow answered ${answer.status}: ${detail}`);
  }
  return said;
}

function open(path) {
  // The frame may not navigate the page around it: Airflow's own router is told instead.
  if (window.parent === window) { window.location.assign(root + path); return; }
  window.parent.history.pushState({}, "", root + path);
  window.parent.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
}

function confOf(form) {
  const conf = {};
  for (const field of form.querySelectorAll("[name]")) {
    const kind = field.dataset.kind;
    if (kind === "flag") conf[field.name] = field.checked;
    else if (kind === "words") conf[field.name] = field.value.split(/[\s,]+/).filter(Boolean);
    else if (field.value.trim() === "") conf[field.name] = null;
    else if (kind === "number") conf[field.name] = Number(field.value);
    else conf[field.name] = field.readOnly ? field.value : field.value.trim(); // what is fixed is sent as it is
  }
  return conf;
}

async function send(form) {
  const dag = encodeURIComponent(form.dataset.dag);
  const said = form.querySelector("[data-said]");
  const button = form.querySelector("button");
  button.disabled = true;
  said.textContent = "Starting …";
  try {
    const paused = form.querySelector("[data-paused]");
    if (!paused.hidden && form.querySelector("[data-unpause]").checked) {
      await call("PATCH", `/dags/${dag}?update_mask=is_paused`, { is_paused: false });
      paused.hidden = true;
    }
    const run = await call("POST", `/dags/${dag}/dagRuns`, { logical_date: null, conf: confOf(form) });
    const path = `/dags/${dag}/runs/${encodeURIComponent(run.dag_run_id)}`;
    const link = document.createElement("a");
    link.href = root + path;
    link.textContent = run.dag_run_id;
    link.addEventListener("click", (event) => { event.preventDefault(); open(path); });
    said.replaceChildren("Started: ", link);
  } catch (error) {
    said.textContent = error.message;
    button.disabled = false;
  }
}

for (const form of document.querySelectorAll("form[data-dag]")) {
  form.addEventListener("submit", (event) => { event.preventDefault(); send(form); });
  call("GET", `/dags/${encodeURIComponent(form.dataset.dag)}`)
    .then((dag) => { form.querySelector("[data-paused]").hidden = !dag.is_paused; })
    .catch((error) => { form.querySelector("[data-said]").textContent = error.message; });
}
const filter = document.querySelector("[data-filter]");
if (filter) {
  const rows = [...document.querySelectorAll("tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
  const choose = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const [row, text] of rows) row.hidden = !words.every((word) => text.includes(word));
    const shown = rows.filter(([row]) => !row.hidden).length;
    document.querySelector("[data-shown]").textContent = words.length ? `${shown} of ${rows.length} streams` : "";
  };
  filter.addEventListener("input", choose);
  choose(); // what the browser has kept of an earlier visit
}
document.querySelector(".form")?.scrollIntoView({ block: "nearest" });
