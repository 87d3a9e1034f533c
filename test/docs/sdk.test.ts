// The page about the SDK as a reader uses it: its program is checked by the compiler as a browser
// app's would be, then run in Node against a broker, and prints what the page says. Uses what the
// package ships: `npm test` builds it first.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { transform } from "esbuild";
import t from "tap";
import { CLIENT_MESSAGES, RETRYABLE } from "../../src/client/errors.ts";
import { startBroker, tempFolder } from "../support/broker.ts";
import { endsWithParent } from "../support/child.ts";
import { blocks, namedRows, ROOT, readPage, section } from "./pages.ts";

const SNIPPETS = blocks(readPage("docs/sdk.md"))
  .filter(({ language }) => language === "ts")
  .map(({ text }) => text);
const EXPECTED = SNIPPETS.flatMap((text) =>
  [...text.matchAll(/\/\/ → (.*)$/gm)].map(([, line = ""]) => line),
);
const SHIPPED = pathToFileURL(join(ROOT, "dist-client/index.js")).href;
/** Printed by the last snippet itself. */
const OF_LAST = [...(SNIPPETS.at(-1) ?? "").matchAll(/\/\/ → /g)].length;

/** Run before the page's program: it notes what is printed, and can wait for it. */
const PRELUDE = `
const print = console.log;
let printed = 0;
console.log = (...values) => { printed += 1; print(...values); };
async function until(lines) {
  for (let n = 0; n < 500 && printed < lines; n++) await new Promise((go) => setTimeout(go, 10));
}`;

t.test("the program prints what the page says", async (t) => {
  const { apiPort, clientPort } = await startBroker(t);
  const folder = await tempFolder(t);
  const last = SNIPPETS.length - 1;
  const waiting = `await until(${EXPECTED.length - OF_LAST});`;
  const program = SNIPPETS.map((text, n) =>
    n === last ? `${waiting}\n${text}` : text,
  )
    .join("\n")
    .replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`)
    .replaceAll("127.0.0.1:5200", `127.0.0.1:${clientPort}`)
    .replaceAll('"jindou-client"', JSON.stringify(SHIPPED));
  const { code } = await transform(program, { loader: "ts", format: "esm" });
  const path = join(folder, "program.mjs");
  await writeFile(path, `${PRELUDE}\n${code}`);
  const { output, errors, exitCode } = await run(process.execPath, [path]);
  t.equal(errors, "");
  t.equal(exitCode, 0);
  const lines = output.trimEnd().split("\n");
  t.same(lines.sort(), [...EXPECTED].sort());
  t.ok(EXPECTED.length > 20);
});

t.test(
  "the program compiles with the SDK's types in a browser app",
  async (t) => {
    const folder = await tempFolder(t);
    const types = join(ROOT, "dist-client/types/client/index.d.ts");
    const compilerOptions = {
      strict: true,
      noEmit: true,
      target: "ES2022",
      module: "ESNext",
      moduleResolution: "bundler",
      lib: ["ES2023", "DOM"],
      types: [],
      paths: { "jindou-client": [types] },
    };
    const config = { compilerOptions, files: ["program.ts"] };
    await writeFile(join(folder, "program.ts"), SNIPPETS.join("\n"));
    await writeFile(join(folder, "tsconfig.json"), JSON.stringify(config));
    const compiler = join(ROOT, "node_modules/.bin/tsc");
    const { output, exitCode } = await run(compiler, ["-p", folder]);
    t.equal(output, "");
    t.equal(exitCode, 0);
  },
);

t.test("its table has every code that arises in the SDK", async (t) => {
  const rows = namedRows(section(readPage("docs/sdk.md"), "## Errors"));
  t.same([...rows.keys()].sort(), Object.keys(CLIENT_MESSAGES).sort());
  for (const [code, [retry]] of rows)
    t.equal(retry, RETRYABLE.has(code) ? "yes" : "no", code);
});

/** With an empty environment. */
async function run(command: string, args: readonly string[]) {
  const env = ["-i", `PATH=${process.env.PATH}`];
  const child = spawn(...endsWithParent("env", [...env, command, ...args]));
  let output = "";
  let errors = "";
  child.stdout.setEncoding("utf8").on("data", (chunk: string) => {
    output += chunk;
  });
  child.stderr.setEncoding("utf8").on("data", (chunk: string) => {
    errors += chunk;
  });
  const [exitCode] = await once(child, "close");
  return { output, errors, exitCode };
}
