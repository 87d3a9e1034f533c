// The page about HTTP: every example is run, in order, on an empty broker, and answers as shown;
// its table of errors is the code's.

import t from "tap";
import { EDGE_ERRORS, HTTP_STATUS } from "../../src/api/errors.ts";
import { ERRORS } from "../../src/broker/errors.ts";
import { startBroker } from "../support/broker.ts";
import { blocks, namedRows, readPage, section } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

const PAGE = readPage("docs/http.md");

/** Differs from run to run; its type and presence count. */
const VOLATILE =
  /("(?:message_id|timestamp|timestamp_ms|version)":)\d+|("(?:token|message_idstr)":)"[^"]+"|("client_msg_no":"server-)\d+/g;

/** Languages of the blocks that show an answer. */
const ANSWERS = ["json", "text"];

const settled = (answer: string) => answer.replaceAll(VOLATILE, "$1$2$3…");

t.test("every example answers what the page shows", async (t) => {
  const settings = { JINDOU_ADMIN_PASSWORD: "correct horse" };
  const { apiPort } = await startBroker(t, settings);
  const terminal = openTerminal(t, process.cwd());
  const examples = blocks(PAGE);
  let answers = 0;
  for (const [index, { language, text }] of examples.entries()) {
    if (language !== "sh") continue;
    const local = text.replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`);
    const printed = await terminal.run(local);
    const next = examples[index + 1];
    if (next === undefined || !ANSWERS.includes(next.language)) continue;
    t.equal(settled(printed), settled(next.text), text);
    answers += 1;
  }
  t.equal(answers, examples.filter((one) => ANSWERS.includes(one.language)).length);
});

t.test("a section, or a row of a table of calls, for every call a backend makes", async (t) => {
  const { call } = await startBroker(t);
  const { paths } = (await call("/openapi.json")).body;
  for (const [path, methods] of Object.entries<object>(paths)) {
    const [name = ""] = Object.keys(methods);
    const title = `${name.toUpperCase()} ${path}`;
    const isThere = PAGE.includes(`\n### ${title}\n`) || PAGE.includes(`| \`${title}\` |`);
    t.ok(isThere, title);
  }
  const missing = PAGE.slice(PAGE.indexOf("\nNot implemented: "));
  for (const [, path = ""] of missing.matchAll(/(?<!use )`(\/[^`]+)`/g))
    t.notOk(path in paths, `${path} is not implemented`);
  t.match(missing, "`/message/event`", "the list is read");
});

t.test("the table of errors is the code's", async (t) => {
  const sockets = ["not_connected", "unsupported_version", "malformed_frame"];
  const expected: Record<string, string[]> = {};
  for (const [code, status] of Object.entries(HTTP_STATUS)) {
    if (sockets.includes(code)) continue;
    const { message, retry } = ERRORS[code as keyof typeof ERRORS];
    const shown = code === "too_large" ? ", 413 for the whole body" : "";
    expected[code] = [`${status}${shown}`, retry ? "yes" : "no", message];
  }
  for (const [code, { status, message }] of Object.entries(EDGE_ERRORS))
    if (code !== "body_too_large") expected[code] = [String(status), "no", message];
  const rows = namedRows(section(PAGE, "## Errors"));
  t.same(Object.fromEntries(rows), expected);
});
