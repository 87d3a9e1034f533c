// Tests of `docs/http.md`: every example runs, in order, on an empty broker and prints the response
// that the page shows, and the table of errors equals the table in the code.

import t from "tap";
import { EDGE_ERRORS, HTTP_STATUS } from "../../src/api/errors.ts";
import { ERRORS } from "../../src/broker/errors.ts";
import { startBroker } from "../support/broker.ts";
import { blocks, namedRows, readPage, section } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

const PAGE = readPage("docs/http.md");

/** Values that differ from run to run. Only their types and presence are compared. */
const VOLATILE =
  /("(?:message_id|timestamp|timestamp_ms|version)":)\d+|("(?:token|message_idstr)":)"[^"]+"|("client_msg_no":"server-)\d+/g;

/** Text after the usual status of a code, for codes that also have another status. */
const OTHER_STATUSES: ReadonlyMap<string, string> = new Map([
  ["too_large", ", 413 for the whole body"],
  ["channel_not_found", ", 403 for a send or an event"],
]);

/** Languages of the blocks that show a response. */
const RESPONSE_LANGUAGES = ["json", "text"];

/** Replaces the values that differ from run to run. */
const normalized = (response: string) => response.replaceAll(VOLATILE, "$1$2$3…");

t.test("every example in docs/http.md prints the response that the page shows", async (t) => {
  const settings = { JINDOU_ADMIN_PASSWORD: "correct horse" };
  const { apiPort } = await startBroker(t, settings);
  const terminal = openTerminal(t, process.cwd());
  const examples = blocks(PAGE);
  let compared = 0;
  for (const [index, { language, text }] of examples.entries()) {
    if (language !== "sh") continue;
    const local = text.replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`);
    const printed = await terminal.run(local);
    const next = examples[index + 1];
    if (next === undefined || !RESPONSE_LANGUAGES.includes(next.language)) continue;
    t.equal(normalized(printed), normalized(next.text), text);
    compared += 1;
  }
  const shown = examples.filter(({ language }) => RESPONSE_LANGUAGES.includes(language));
  t.equal(compared, shown.length, "every response on the page is compared");
});

t.test("docs/http.md describes every call of the API in a section or a table row", async (t) => {
  const { call } = await startBroker(t);
  const { paths } = (await call("/openapi.json")).body;
  for (const [path, methods] of Object.entries<object>(paths)) {
    const [name = ""] = Object.keys(methods);
    const title = `${name.toUpperCase()} ${path}`;
    const isDescribed = PAGE.includes(`\n### ${title}\n`) || PAGE.includes(`| \`${title}\` |`);
    t.ok(isDescribed, `${title} is described`);
  }
  const missing = PAGE.slice(PAGE.indexOf("\nNot implemented: "));
  for (const [, path = ""] of missing.matchAll(/(?<!use )`(\/[^`]+)`/g))
    t.notOk(path in paths, `${path} is not implemented`);
  t.match(missing, "`/user/update_plugin_no`", "the page lists the calls that are not implemented");
});

t.test("the table of errors in docs/http.md equals the table in the code", async (t) => {
  const sockets = ["not_connected", "unsupported_version", "malformed_frame"];
  const expected: Record<string, string[]> = {};
  for (const [code, status] of Object.entries(HTTP_STATUS)) {
    if (sockets.includes(code)) continue;
    const { message, retry } = ERRORS[code as keyof typeof ERRORS];
    const shown = OTHER_STATUSES.get(code) ?? "";
    expected[code] = [`${status}${shown}`, retry ? "yes" : "no", message];
  }
  for (const [code, { status, message }] of Object.entries(EDGE_ERRORS))
    if (code !== "body_too_large")
      expected[code] = [String(status), status === 503 ? "yes" : "no", message];
  const rows = namedRows(section(PAGE, "## Errors"));
  t.same(Object.fromEntries(rows), expected);
});
