// Tests of `docs/sdk.md`: its program compiles as part of a browser app, and in Node.js it prints
// what the page says. The tests use the built package, which `npm test` builds first.

import { spawn } from "node:child_process";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { transform } from "esbuild";
import t from "tap";
import { CLIENT_MESSAGES, RETRYABLE } from "../../src/client/errors.ts";
import { startBroker, tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { outputOf } from "../support/run.ts";
import { blocks, namedRows, ROOT, readPage, section } from "./pages.ts";

const SNIPPETS = blocks(readPage("docs/sdk.md"))
  .filter(({ language }) => language === "ts")
  .map(({ text }) => text);
const EXPECTED = SNIPPETS.flatMap((text) =>
  [...text.matchAll(/\/\/ → (.*)$/gm)].map(([, line = ""]) => line),
);
const SHIPPED = pathToFileURL(join(ROOT, "dist-client/index.js")).href;
/** Number of lines that the last snippet prints. */
const LAST_SNIPPET_LINES = [...(SNIPPETS.at(-1) ?? "").matchAll(/\/\/ → /g)].length;

/**
 * Code in front of the page's program. It counts the printed lines, so that the program waits for
 * all of them before it ends.
 */
const PRELUDE = `
const print = console.log;
let printed = 0;
console.log = (...values) => { printed += 1; print(...values); };
async function until(lines) {
  for (let n = 0; n < 6000 && printed < lines; n++) await new Promise((go) => setTimeout(go, 10));
}`;

t.test("the program in docs/sdk.md prints what the page says", async (t) => {
  const { apiPort, clientPort } = await startBroker(t);
  const folder = await tempFolder(t);
  const last = SNIPPETS.length - 1;
  const wait = `await until(${EXPECTED.length - LAST_SNIPPET_LINES});`;
  const program = SNIPPETS.map((text, n) => (n === last ? `${wait}\n${text}` : text))
    .join("\n")
    .replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`)
    .replaceAll("127.0.0.1:5200", `127.0.0.1:${clientPort}`)
    .replaceAll('"jindou-client"', JSON.stringify(SHIPPED));
  const { code } = await transform(program, { loader: "ts", format: "esm" });
  const path = join(folder, "program.mjs");
  await writeFile(path, `${PRELUDE}\n${code}`);
  const { output, errors, exitCode } = await run(process.execPath, [path]);
  t.equal(errors, "", "the program prints no errors");
  t.equal(exitCode, 0);
  const lines = output.trimEnd().split("\n");
  t.same(lines.sort(), [...EXPECTED].sort(), "the program prints the lines on the page");
  t.ok(EXPECTED.length > 20, "the page shows the output");
});

t.test(
  "the program in docs/sdk.md compiles in a browser app, and `connect` accepts the browser's WebSocket class",
  async (t) => {
    const folder = await tempFolder(t);
    const types = join(ROOT, "dist-client/index.d.ts");
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
    const config = { compilerOptions, files: ["program.ts", "socket.ts"] };
    const passing = `import { connect } from "jindou-client";
export const client = connect({ url: "ws://localhost", uid: "ann", webSocket: WebSocket });`;
    await writeFile(join(folder, "socket.ts"), passing);
    await writeFile(join(folder, "program.ts"), SNIPPETS.join("\n"));
    await writeFile(join(folder, "tsconfig.json"), JSON.stringify(config));
    const compiler = join(ROOT, "node_modules/.bin/tsc");
    const { output, exitCode } = await run(compiler, ["-p", folder]);
    t.equal(output, "");
    t.equal(exitCode, 0);
  },
);

t.test("the login page in docs/sdk.md requests a token and connects with it", async (t) => {
  const { apiPort, clientPort } = await startBroker(t);
  const folder = await tempFolder(t);
  const instructions = section(readPage("docs/sdk.md"), "## How a login page gets a token");
  const [backend = "", page = ""] = blocks(instructions).map(({ text }) =>
    text
      .replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`)
      .replaceAll("127.0.0.1:5200", `127.0.0.1:${clientPort}`)
      .replaceAll('"jindou-client"', JSON.stringify(SHIPPED)),
  );
  const serverCode = backend
    .replace("createServer((", "export const server = createServer((")
    .replace("listen(8080,", "listen(0,");
  await writeFile(join(folder, "login.mjs"), serverCode);
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

t.test("the tables in docs/sdk.md list the fields of the exported types", async (t) => {
  const page = section(readPage("docs/sdk.md"), "## Events and their fields");
  const api = readPage("src/client/api.ts");
  const model = readPage("src/broker/model.ts");
  const events = bodyOf(api, /^export interface ClientEvents \{\n/m, "}");
  const shown = [...page.slice(0, page.indexOf("### ")).matchAll(/^\| `(\w+)` \|/gm)];
  t.same(
    shown.map(([, name]) => name),
    [...events.matchAll(/^ {2}readonly (\w+): /gm)].map(([, name]) => name),
    "the page lists the events",
  );
  const bodies: Record<string, string> = {
    "### Changed conversation": bodyOf(events, /^ {2}readonly conversation: \{\n/m, "  }"),
    "### Unread count": bodyOf(events, /^ {2}readonly unread: \{\n/m, "  }"),
    "### Kicked": bodyOf(events, /^ {2}readonly kicked: \{\n/m, "  }"),
    "### Presence of a user": interfaceOf(model, "Presence"),
    "### StreamNote": interfaceOf(model, "StreamNote"),
    "#### ChannelRef": interfaceOf(model, "ChannelRef"),
  };
  for (const [heading] of page.matchAll(/^#{3,4} \w+$/gm))
    bodies[heading] ??= interfaceOf(api, heading.split(" ")[1]);
  t.equal(Object.keys(bodies).length, 18, "the page describes 18 types");
  for (const [heading, body] of Object.entries(bodies)) {
    const rows = [...namedRows(section(page, heading))];
    t.same(
      rows.map(([name, [type]]) => `${name}: ${type}`),
      fieldsOf(body),
      `the table below ${heading} lists the fields of the type`,
    );
  }
});

/** Returns the body of the interface with this name. */
function interfaceOf(source: string, name = ""): string {
  return bodyOf(source, new RegExp(`^export interface ${name}\\b.*\\{\\n`, "m"), "}");
}

/** Returns the text between the opening and the line that begins with `end`. */
function bodyOf(source: string, opening: RegExp, end: string): string {
  const match = opening.exec(source);
  if (match === null) throw new Error(`the source has no ${opening}`);
  const body = source.slice(match.index + match[0].length);
  return body.slice(0, body.indexOf(`\n${end}`) + 1);
}

/**
 * Returns the fields of an interface in the form of the page. A `?` marks a field that may be
 * undefined.
 */
function fieldsOf(body: string): readonly string[] {
  const fields = body.matchAll(/^ +readonly (\w+)(\??): ([^;]+);$/gm);
  return [...fields].map(([, name, optional, type = ""]) => {
    const isOptional = optional !== "" || type.endsWith(" | undefined");
    const written = type.replace(" | undefined", "").replaceAll(" | ", " or ");
    return `${name}: \`${written}${isOptional ? "?" : ""}\``;
  });
}

t.test(
  "the table of errors in docs/sdk.md has every code that the SDK itself produces",
  async (t) => {
    const rows = namedRows(section(readPage("docs/sdk.md"), "## Errors"));
    t.same([...rows.keys()].sort(), Object.keys(CLIENT_MESSAGES).sort());
    for (const [code, [retry]] of rows)
      t.equal(
        retry,
        RETRYABLE.has(code) ? "yes" : "no",
        `the page says correctly whether ${code} can be retried`,
      );
  },
);

/** Runs the command with an environment that has only `PATH`, and returns its output. */
async function run(command: string, args: readonly string[]) {
  const env = ["-i", `PATH=${process.env.PATH}`];
  return outputOf(spawn(...tieToParent("env", [...env, command, ...args])));
}
