// The autocannon scripts and command lines in docs/benchmarks.md: every call succeeds on an empty
// broker.

import { execFile } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import t from "tap";
import { blocks, ROOT, readPage, section } from "../docs/pages.ts";
import { openTerminal } from "../docs/terminal.ts";
import { spawnBroker } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";

const execute = promisify(execFile);
const PAGE = section(readPage("docs/benchmarks.md"), "## With autocannon");
const CALLS = [
  ...["user-token", "user-onlinestatus", "channel", "channel-subscriber_remove"],
  ...["message-send", "event", "migrate-result"],
];

t.test("autocannon measures every call of the specification without a failed call", async (t) => {
  const { apiPort } = await spawnBroker(t);
  const measure = async (call: string) => {
    t.ok(PAGE.includes(call), `the page names ${call}`);
    const file = join(ROOT, `bench/results/autocannon-${call}.json`);
    rmSync(file, { force: true });
    const script = [join(ROOT, "bench/autocannon/run.mjs"), call];
    const address = ["--api", `http://127.0.0.1:${apiPort}`];
    const options = ["--connections", "4", "--amount", "100", ...address];
    await execute(...tieToParent(process.execPath, [...script, ...options]));
    t.equal(JSON.parse(readFileSync(file, "utf8"))["2xx"], 100, `${call}: all calls succeed`);
  };
  await Promise.all(CALLS.map(measure));
});

t.test("the autocannon command lines in docs/benchmarks.md work", async (t) => {
  const { apiPort } = await spawnBroker(t);
  const [, lines] = blocks(PAGE).filter(({ language }) => language === "bash");
  const short = (lines?.text ?? "")
    .replaceAll("5001", `${apiPort}`)
    .replaceAll("npx autocannon", "node_modules/.bin/autocannon")
    .replaceAll("-c 64 -d 10", "-c 2 -a 20 -j");
  const output = await openTerminal(t, ROOT).run(short);
  const results = output.match(/^\{.*"2xx".*\}$/gm) ?? [];
  t.equal(results.length, 6, output);
  for (const result of results) t.match(JSON.parse(result), { "2xx": 20, non2xx: 0, errors: 0 });
});
