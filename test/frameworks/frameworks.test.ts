// The code of the pages in docs/frameworks as apps: compiled and built by the frameworks' tools
// with the SDK's built package, and used in Chromium with a real broker. Only `npm run test:full`
// runs these tests; .ci/frameworks and .ci/runtimes install what they need.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { cp, mkdir, readdir, readFile, symlink, writeFile } from "node:fs/promises";
import { dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";
import type { Page } from "playwright-core";
import t, { type Test } from "tap";
import { connect, group } from "../../src/client/index.ts";
import { launchBrowser, servePages } from "../client/browser.ts";
import { CLIENT_PACKAGE, registerTalkers, TALK } from "../client/talk.ts";
import { type Broker, spawnBroker, tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { freePort } from "../support/redis.ts";
import { IS_FULL } from "../support/volume.ts";
import { ANGULAR, NEXT, REACT, type Sources, SVELTE, VUE } from "./apps.ts";

const skip = IS_FULL ? false : "only npm run test:full installs the frameworks";
const LONG = { skip, timeout: 600_000 };

/** Returns the folder of the packages that a script in .ci has installed. */
function packagesOf(name: string): string {
  const script = fileURLToPath(new URL(`../../.ci/${name}`, import.meta.url));
  return execFileSync(script, ["--print"], { encoding: "utf8" }).trim();
}

const packages = packagesOf("frameworks");
/** Path of Node.js 24. Some of the tools need a newer version than the tests run on. */
const node = join(packagesOf("runtimes"), "node24/bin/node");

/** Writes the files into a folder that has the package of the SDK and links to all others. */
async function createApp(t: Test, sources: Sources): Promise<string> {
  const folder = await tempFolder(t);
  const modules = join(folder, "node_modules");
  await cp(CLIENT_PACKAGE, join(modules, "jindou-client"), { recursive: true });
  for (const name of await readdir(packages))
    await symlink(join(packages, name), join(modules, name));
  for (const [name, text] of Object.entries(sources)) {
    await mkdir(dirname(join(folder, name)), { recursive: true });
    await writeFile(join(folder, name), text);
  }
  return folder;
}

/** Starts a program of the packages in the app's folder. */
function start(folder: string, [program = "", ...args]: readonly string[], variables = {}) {
  const env = { PATH: process.env.PATH, HOME: process.env.HOME, CI: "1", ...variables };
  const command = tieToParent(node, [join(packages, program), ...args]);
  const child = spawn(...command, { cwd: folder, env: { ...env, NEXT_TELEMETRY_DISABLED: "1" } });
  let output = "";
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding("utf8").on("data", (chunk: string) => {
      output += chunk;
    });
  return { child, output: () => output };
}

/** Runs a program of the packages. Throws if the program fails. */
async function succeeds(t: Test, folder: string, command: readonly string[], variables = {}) {
  const { child, output } = start(folder, command, variables);
  const [exitCode] = await once(child, "close");
  if (exitCode !== 0) throw new Error(`${command.join(" ")} failed: ${output()}`);
  t.pass(`${command.join(" ")} succeeds`);
}

const TYPES: Readonly<Record<string, string>> = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
};

/** Serves the files of a folder. Returns the address. */
function serve(t: Test, folder: string): Promise<string> {
  return servePages(t, async ({ url = "" }, response) => {
    const { pathname } = new URL(url, "http://localhost");
    const name = pathname === "/" ? "/index.html" : pathname;
    const bytes = await readFile(join(folder, name)).catch(() => undefined);
    response.writeHead(bytes === undefined ? 404 : 200, {
      "content-type": TYPES[extname(name)] ?? "application/octet-stream",
    });
    response.end(bytes);
  });
}

const UIDS = ["amy", "ben", "bot"];

async function startLobby(t: Test): Promise<Broker> {
  const broker = await spawnBroker(t);
  for (const uid of UIDS)
    await broker.call("/user/token", { uid, token: `${uid}-token`, device_flag: 1 });
  await broker.call("/channel", { channel_id: "lobby", channel_type: 2, subscribers: UIDS });
  return broker;
}

const urlOf = ({ clientPort }: Broker) => `ws://127.0.0.1:${clientPort}`;

async function until(holds: () => boolean | Promise<boolean>): Promise<void> {
  while (!(await holds())) await new Promise((resolve) => setTimeout(resolve, 20));
}

/** Opens the page as amy. Errors in the page and on its console fail the test. */
async function open(t: Test, address: string): Promise<Page> {
  const page = await (await launchBrowser(t)).newPage();
  page.setDefaultTimeout(60_000);
  page.on("pageerror", (error) => t.fail(`uncaught error in the page: ${error.message}`));
  page.on("console", (line) => {
    const isMissingIcon = line.location().url.endsWith("/favicon.ico");
    if (line.type() === "error" && !isMissingIcon) t.fail(`error in the page: ${line.text()}`);
  });
  await page.goto(address);
  return page;
}

/** Uses the app in the page as amy, and sends messages to her as ben. */
async function play(t: Test, broker: Broker, address: string): Promise<void> {
  const lobby = group("lobby");
  const ben = connect({ url: urlOf(broker), uid: "ben", token: "ben-token" });
  t.teardown(() => ben.close());
  const received: unknown[] = [];
  ben.on("message", ({ fromUid, content }) => received.push(`${fromUid}: ${content?.content}`));
  const sessions = async (): Promise<number> =>
    (await broker.call("/connz?uid=amy")).body.connections.length;
  const part = (type: string, data: string) =>
    broker.call("/event", {
      ...{ client_msg_no: "answer", channel_id: "lobby", channel_type: 2, from_uid: "bot" },
      event: { type: `___TextMessage${type}`, data },
    });
  const page = await open(t, address);
  const shown: string[] = [];
  const lines = async () => {
    const texts = await page.locator("li").allInnerTexts();
    return texts.map((text) => text.replaceAll(/\s+/g, " ").trim());
  };
  const shows = async (line: string) => {
    shown.push(line);
    await until(async () => (await lines()).length >= shown.length);
    await page
      .getByText(line.replace(/^\w+: /, ""), { exact: false })
      .last()
      .waitFor();
    t.same(await lines(), shown, `the page shows ${line}`);
  };
  const isOnline = () => page.getByText("online", { exact: true }).waitFor();

  await isOnline();
  await until(async () => (await sessions()) === 1);
  await ben.send(lobby, "hello amy");
  await shows("ben: hello amy");
  await page.locator("input").fill("hello ben");
  await page.getByRole("button", { name: "Send" }).click();
  await shows("amy: hello ben");
  await until(() => received.length > 0);
  t.same(received, ["amy: hello ben"], "the app has sent its message once");
  await part("Start", "");
  await part("Content", "The answer ");
  await page.locator("em[data-state=active]").waitFor();
  await part("Content", "is 42.");
  await part("End", "");
  await page.locator("em[data-state=closed]").waitFor();
  await shows("bot: The answer is 42.");
  await page.getByRole("button", { name: "Leave" }).click();
  await until(async () => (await sessions()) === 0);
  await ben.send(lobby, "while you were away");
  await page.getByRole("button", { name: "Join" }).click();
  await isOnline();
  await shows("ben: while you were away");
  t.equal(await page.locator("em[data-state=closed]").count(), 1);
  await ben.send(lobby, "after your return");
  await shows("ben: after your return");
  t.equal(await sessions(), 1, "the app has one session");
}

const VITE = ["vite/bin/vite.js", "build", "--logLevel", "warn"];
const APPS = {
  // StrictMode mounts twice in development builds only
  "React in StrictMode": {
    sources: REACT,
    check: ["typescript/bin/tsc"],
    bundle: [...VITE, "--mode", "development"],
    variables: { NODE_ENV: "development" },
  },
  "Vue 3": { sources: VUE, check: ["vue-tsc/bin/vue-tsc.js"], bundle: VITE, variables: {} },
  "Svelte 5": {
    sources: SVELTE,
    check: ["svelte-check/bin/svelte-check", "--fail-on-warnings"],
    bundle: VITE,
    variables: {},
  },
} as const;

for (const [name, { sources, check, bundle, variables }] of Object.entries(APPS))
  t.test(`the ${name} example compiles, and its app works in Chromium`, LONG, async (t) => {
    const folder = await createApp(t, sources);
    await succeeds(t, folder, check);
    await succeeds(t, folder, bundle, variables);
    const broker = await startLobby(t);
    const address = await serve(t, join(folder, "dist"));
    await play(t, broker, `${address}?url=${urlOf(broker)}&uid=amy&token=amy-token`);
  });

t.test("the Angular example compiles, and its app works in Chromium", LONG, async (t) => {
  const folder = await createApp(t, ANGULAR);
  await succeeds(t, folder, ["@angular/compiler-cli/bundles/src/bin/ngc.js"]);
  await build({
    ...{ entryPoints: [join(folder, "out/main.js")], outfile: join(folder, "main.js") },
    ...{ bundle: true, platform: "browser", format: "esm", logLevel: "error" },
  });
  const broker = await startLobby(t);
  const address = await serve(t, folder);
  await play(t, broker, `${address}?url=${urlOf(broker)}&uid=amy&token=amy-token`);
});

for (const bundler of ["turbopack", "webpack"])
  t.test(`the Next.js app, built by ${bundler}, works in Chromium`, LONG, async (t) => {
    const folder = await createApp(t, NEXT);
    const broker = await startLobby(t);
    const variables = {
      ...{ CHAT_URL: urlOf(broker), CHAT_UID: "amy", CHAT_TOKEN: "amy-token" },
      BOT_TOKEN: "bot-token",
    };
    await succeeds(t, folder, ["next/dist/bin/next", "build", `--${bundler}`], variables);
    const port = await freePort();
    const address = `http://127.0.0.1:${port}/`;
    const server = ["next/dist/bin/next", "start", "--hostname", "127.0.0.1", "--port", `${port}`];
    const { child, output } = start(folder, server, variables);
    t.teardown(() => child.kill());
    await until(() => output().includes("Ready") || child.exitCode !== null);
    await play(t, broker, address);
    const response = await fetch(`${address}greet`, { method: "POST" });
    t.same(await response.json(), { messageSeq: 6 }, output());
    const { body } = await broker.call("/connz?uid=bot");
    t.same(body.connections, [], "the route has closed its client");
  });

t.test("webpack bundles of the SDK work in Node.js 20 and 24 and in Chromium", LONG, async (t) => {
  const folder = await createApp(t, {
    "package.json": '{"private":true}',
    "talk.mjs": `import { connect, group } from "jindou-client";\n${TALK}`,
    "talk.cjs": `const { connect, group } = require("jindou-client");\n(async () => {${TALK}})();`,
    "page.mjs": `import { connect, group } from "jindou-client";
const process = { argv: [, , new URLSearchParams(location.search).get("url")] };
const console = { log: (text) => document.body.append(text) };
${TALK}`,
    "index.html": `<!doctype html><body><script type="module" src="page.js"></script></body>`,
    "bundle.mjs": `import webpack from "webpack";
const common = { mode: "production", performance: false };
const path = import.meta.dirname;
const bundles = [
  { ...common, target: "node20", entry: { module: "./talk.mjs", common: "./talk.cjs" },
    output: { path, filename: "[name]-bundle.cjs" } },
  { ...common, target: "web", entry: { page: "./page.mjs" }, output: { path, filename: "[name].js" } },
];
webpack(bundles, (error, stats) => {
  const isBroken = error || stats.hasErrors() || stats.hasWarnings();
  if (isBroken) console.log(error ?? stats.toString());
  process.exitCode = isBroken ? 1 : 0;
});
`,
  });
  const broker = await spawnBroker(t);
  await registerTalkers(broker);
  const bundling = spawn(node, ["bundle.mjs"], { cwd: folder, stdio: "pipe" });
  let errors = "";
  bundling.stdout.on("data", (chunk) => {
    errors += chunk;
  });
  await once(bundling, "close");
  t.equal(errors, "", "webpack reports neither errors nor warnings");
  for (const executable of [process.execPath, node])
    for (const name of ["module", "common"]) {
      const bundle = join(folder, `${name}-bundle.cjs`);
      const output = execFileSync(executable, [bundle, urlOf(broker)], { encoding: "utf8" });
      t.equal(output, "works\n", `${name} with ${executable}`);
    }
  const page = await open(t, `${await serve(t, folder)}?url=${urlOf(broker)}`);
  await page.getByText("works").waitFor();
});
