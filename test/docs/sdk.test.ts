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
import { tieToParent } from "../support/child.ts";
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
  const program = SNIPPETS.map((text, n) => (n === last ? `${waiting}\n${text}` : text))
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

t.test("the program compiles with the SDK's types in a browser app", async (t) => {
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
});

t.test("the login page gets a token and connects with it", async (t) => {
  const { apiPort, clientPort } = await startBroker(t);
  const folder = await tempFolder(t);
  const recipe = section(readPage("docs/sdk.md"), "## How a login page gets a token");
  const [backend = "", page = ""] = blocks(recipe).map(({ text }) =>
    text
      .replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`)
      .replaceAll("127.0.0.1:5200", `127.0.0.1:${clientPort}`)
      .replaceAll('"jindou-client"', JSON.stringify(SHIPPED)),
  );
  const served = backend
    .replace("createServer((", "export const server = createServer((")
    .replace("listen(8080,", "listen(0,");
  await writeFile(join(folder, "login.mjs"), served);
  const path = join(folder, "page.mjs");
  await writeFile(
    path,
    `import { once } from "node:events";
import { server } from "./login.mjs";
if (!server.listening) await once(server, "listening");
const { fetch: outside } = globalThis;
globalThis.fetch = (url, init) => outside(url.replace(":8080/", \`:\${server.address().port}/\`), init);
${page}
console.log((await tokenOf("alice", "wonderland")) === token);
await tokenOf("alice", "guess").catch((error) => console.log(error.message));
await client.close();
server.close();
server.closeAllConnections();
`,
  );
  const { output, errors, exitCode } = await run(process.execPath, [path]);
  t.equal(errors, "");
  t.equal(exitCode, 0);
  t.same(output.trimEnd().split("\n"), [
    "online",
    "true",
    "the name or the password is wrong",
    "closed",
  ]);
});

t.test("its tables have the fields of the exported types", async (t) => {
  const page = section(readPage("docs/sdk.md"), "## Events and their fields");
  const api = readPage("src/client/api.ts");
  const model = readPage("src/broker/model.ts");
  const events = bodyOf(api, /^export interface ClientEvents \{\n/m, "}");
  const shown = [...page.slice(0, page.indexOf("### ")).matchAll(/^\| `(\w+)` \|/gm)];
  t.same(
    shown.map(([, name]) => name),
    [...events.matchAll(/^ {2}readonly (\w+): /gm)].map(([, name]) => name),
    "the events",
  );
  const bodies: Record<string, string> = {
    "### Changed conversation": bodyOf(events, /^ {2}readonly conversation: \{\n/m, "  }"),
    "### Kicked": bodyOf(events, /^ {2}readonly kicked: \{\n/m, "  }"),
    "### Presence of a user": interfaceOf(model, "Presence"),
    "### StreamNote": interfaceOf(model, "StreamNote"),
    "#### ChannelRef": interfaceOf(model, "ChannelRef"),
  };
  for (const [heading] of page.matchAll(/^#{3,4} \w+$/gm))
    bodies[heading] ??= interfaceOf(api, heading.split(" ")[1]);
  t.equal(Object.keys(bodies).length, 14);
  for (const [heading, body] of Object.entries(bodies)) {
    const rows = [...namedRows(section(page, heading))];
    t.same(
      rows.map(([name, [type]]) => `${name}: ${type}`),
      fieldsOf(body),
      heading,
    );
  }
});

function interfaceOf(source: string, name = ""): string {
  return bodyOf(source, new RegExp(`^export interface ${name}\\b.*\\{\\n`, "m"), "}");
}

/** Up to the line that begins with `end`. */
function bodyOf(source: string, opening: RegExp, end: string): string {
  const found = opening.exec(source);
  if (found === null) throw new Error(`there is no ${opening}`);
  const body = source.slice(found.index + found[0].length);
  return body.slice(0, body.indexOf(`\n${end}`) + 1);
}

/** Of an interface's body, as the page writes them: `?` where a field may be undefined. */
function fieldsOf(body: string): readonly string[] {
  const fields = body.matchAll(/^ +readonly (\w+)(\??): ([^;]+);$/gm);
  return [...fields].map(([, name, optional, type = ""]) => {
    const written = type.replace(" | undefined", "?").replaceAll(" | ", " or ");
    return `${name}: \`${written}${optional}\``;
  });
}

t.test("its table has every code that arises in the SDK", async (t) => {
  const rows = namedRows(section(readPage("docs/sdk.md"), "## Errors"));
  t.same([...rows.keys()].sort(), Object.keys(CLIENT_MESSAGES).sort());
  for (const [code, [retry]] of rows) t.equal(retry, RETRYABLE.has(code) ? "yes" : "no", code);
});

/** With an empty environment. */
async function run(command: string, args: readonly string[]) {
  const env = ["-i", `PATH=${process.env.PATH}`];
  const child = spawn(...tieToParent("env", [...env, command, ...args]));
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
