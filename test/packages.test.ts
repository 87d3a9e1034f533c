// The three packages (broker, client and backend client) as users install them: packed from a fresh
// copy of the project and installed without a network into empty projects. The client then runs in
// Node and in Chromium against the installed broker. JINDOU_TEST_NODES names further Node binaries
// for the client, separated by colons.

import { readFileSync } from "node:fs";
import { cp, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { launchBrowser, openPage } from "./client/browser.ts";
import { blocks, readPage } from "./docs/pages.ts";
import { openTerminal, type Terminal } from "./docs/terminal.ts";
import { tempFolder } from "./support/broker.ts";
import { freshCopy } from "./support/fresh-copy.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const MAX_PACKAGES = 3;
const MAX_UNPACKED_BYTES = 350_000;
const BIN = "node_modules/.bin";
const NPM_INSTALL = "npm install --offline --ignore-scripts --no-audit --no-fund";
const { version } = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));

/** Module of an app that runs in Node and in browsers. */
const TALK = `import { connect, group, JindouError, type ReceivedMessage } from "jindou-client";

export async function talk(url: string): Promise<string> {
  const alice = connect({ url, uid: "alice", token: "alice-token" });
  const bob = connect({ url, uid: "bob", token: "bob-token" });
  const received = new Promise<ReceivedMessage>((resolve) => bob.on("message", resolve));
  await Promise.all([alice.ready(), bob.ready()]);
  const { messageSeq } = await alice.send(group("lobby"), "hello");
  const { fromUid, content, ...message } = await received;
  await Promise.all([alice.close(), bob.close()]);
  const isSame: boolean = message.messageSeq === messageSeq;
  return \`\${fromUid}: \${String(content?.["content"])}, \${isSame}\`;
}

export function stackOfMistake(): string {
  try {
    connect({ url: "no address", uid: "alice" });
  } catch (error) {
    if (error instanceof JindouError && error.code === "bad_option") return error.stack ?? "";
  }
  return "";
}
`;
const MAIN = `import { stackOfMistake, talk } from "./talk.js";

declare const process: { readonly argv: readonly string[] };
const [, , url = ""] = process.argv;
console.log(url === "" ? stackOfMistake() : await talk(url));
`;
const RESOLUTIONS = {
  node16: "node16",
  nodenext: "nodenext",
  bundler: "esnext",
} as const;

const LONG = { timeout: 900_000 };

t.test(
  "the broker, client and backend packages work after installation in an empty project",
  LONG,
  async (t) => {
    const copy = await freshCopy(t);
    const packing = openTerminal(t, copy);
    const [server = "", client = "", backend = ""] = [
      await tarball(packing, copy, "npm pack --silent"), // also builds the package
      await tarball(packing, copy, "npm run --silent pack:client"),
      await tarball(packing, copy, "npm run --silent pack:backend"),
    ];

    const [line] = blocks(readPage("docs/sdk.md"));
    t.equal(
      line?.text,
      `npm install ./${basename(client)}`,
      "the guide names the tarball of the client",
    );
    const { url, api } = await startInstalled(t, server);
    await t.test("a backend compiles and sends a message with its package", (t) =>
      worksInBackend(t, backend, api),
    );
    const app = await tempFolder(t);
    await t.test("the client installs with at most 3 packages and 350,000 bytes", (t) =>
      installsSmall(t, app, client),
    );
    await t.test("an app that uses the client compiles with TypeScript", (t) => compiles(t, app));
    await t.test("a CommonJS app that loads the client compiles and runs", (t) =>
      loadsFromCommonJs(t, app),
    );
    await t.test("the client's types contain no server types", (t) => hasOwnTypes(t, app));
    await t.test("stack traces of the client name the lines of its sources", (t) =>
      leadsToSources(t, app),
    );
    for (const node of [process.execPath, ...otherNodes()])
      await t.test(`the client sends and receives messages in ${node}`, async (t) => {
        const shell = openTerminal(t, app);
        t.comment(await shell.run(`${node} --version`));
        t.equal(await shell.run(`${node} out/main.js ${url}`), EXPECTED_OUTPUT);
      });
    await t.test("the client sends and receives messages in Chromium", async (t) => {
      const page = await openPage(t, await launchBrowser(t), join(app, "talk.ts"));
      const output = await page.evaluate((url) => {
        type Page = { bundled: { talk(url: string): Promise<string> } };
        return (globalThis as unknown as Page).bundled.talk(url);
      }, url);
      t.equal(output, EXPECTED_OUTPUT);
    });
  },
);

const EXPECTED_OUTPUT = "alice: hello, true";

function otherNodes(): readonly string[] {
  return (process.env.JINDOU_TEST_NODES ?? "").split(":").filter(Boolean);
}

/**
 * Runs the command and returns the path of the tarball that it creates. The last line of the output
 * is the tarball's name.
 */
async function tarball(shell: Terminal, folder: string, command: string) {
  const printed = await shell.run(command);
  const name = printed.split("\n").at(-1) ?? "";
  if (!name.endsWith(`-${version}.tgz`)) throw new Error(printed);
  return join(folder, name);
}

/**
 * Installs the broker's tarball beside its dependencies, which are copied from here, and starts the
 * broker with two users and a group. Returns the addresses for clients and for backends.
 */
async function startInstalled(
  t: Test,
  tarball: string,
): Promise<{ readonly url: string; readonly api: string }> {
  const folder = await tempFolder(t);
  await copyDependencies(folder);
  await writeFile(join(folder, "package.json"), '{"private":true}');
  const shell = openTerminal(t, folder, {
    JINDOU_API_LISTEN: "127.0.0.1:0",
    JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
    npm_config_update_notifier: "false",
  });
  await install(shell, tarball);
  const output = await shell.run(
    "for arg in --version check-config --stoer; do npx --offline jindou $arg; done",
  );
  const [printedVersion, configCheck, optionError = ""] = output.split("\n").slice(-3);
  t.same([printedVersion, configCheck], [version, "The configuration is valid."]);
  t.match(optionError, /^jindou: .*--stoer/, "an unknown option is named in the error");
  shell.type("npx --offline jindou start; exit");
  const [line] = await shell.untilShown(/^\{.*"msg":"The node is ready"\}$/m);
  const { apiPort, clientPort } = JSON.parse(line);
  const post = async (path: string, body: object) => {
    const response = await fetch(`http://127.0.0.1:${apiPort}${path}`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(body),
    });
    t.equal(response.status, 200, `POST ${path} succeeds`);
  };
  const subscribers = ["alice", "bob"];
  for (const uid of subscribers)
    await post("/user/token", { uid, token: `${uid}-token`, device_flag: 1 });
  await post("/channel", { channel_id: "lobby", channel_type: 2, subscribers });
  return { url: `ws://127.0.0.1:${clientPort}`, api: `http://127.0.0.1:${apiPort}` };
}

/** Copies the packages of a production install, without binaries for other platforms. */
async function copyDependencies(folder: string): Promise<void> {
  const lock = await readFile(join(ROOT, "package-lock.json"), "utf8");
  const packages: Record<string, { dev?: boolean }> = JSON.parse(lock).packages;
  const { platform, arch, versions } = process;
  const binary = `uws_${platform}_${arch}_${versions.modules}.node`;
  await cp(join(ROOT, BIN), join(folder, BIN), {
    recursive: true,
    verbatimSymlinks: true,
  });
  for (const [path, { dev = false }] of Object.entries(packages)) {
    if (path === "" || dev) continue;
    await mkdir(dirname(join(folder, path)), { recursive: true });
    await cp(join(ROOT, path), join(folder, path), {
      recursive: true,
      filter: (file) => !/\/uws_\w+\.node$/.test(file) || file.endsWith(binary),
    }).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT") throw error; // the package is optional and for another platform
    });
  }
}

/** Installs one package and checks that npm adds no other. */
async function install(shell: Terminal, tarball: string): Promise<void> {
  const printed = await shell.run(`${NPM_INSTALL} ${tarball}`);
  if (!/^added 1 package /m.test(printed)) throw new Error(printed);
}

/** Program of a backend. It compiles only if the types of the package accept its values. */
const BACKEND = `import { type Backend, createBackend, JindouApiError, mintToken, payloadOf } from "jindou-server";

const jindou: Backend = createBackend({ url: process.argv[2] ?? "" });
const lobby = { channel_id: "lobby", channel_type: 2 } as const;
const payload = payloadOf({ type: 1, content: "from a backend" });
const token = mintToken({ uid: "alice" }, { algorithm: "HS256", key: "x".repeat(32) });
async function main(): Promise<void> {
  const { message_seq } = await jindou.sendMessage({ ...lobby, from_uid: "bob", payload });
  const { messages } = await jindou.listMessages({ ...lobby, limit: 100 });
  const error: unknown = await jindou.createChannel(lobby).catch((thrown: unknown) => thrown);
  const code = error instanceof JindouApiError ? error.code : "";
  console.log([message_seq > 0, messages.length > 0, code, token.split(".").length].join(" "));
}
void main();
`;

async function worksInBackend(t: Test, tarball: string, api: string): Promise<void> {
  const app = await tempFolder(t);
  await writeFile(join(app, "package.json"), '{"private":true,"type":"module"}');
  const shell = openTerminal(t, app, { npm_config_update_notifier: "false" });
  await install(shell, tarball);
  for (const name of ["main.mts", "main.cts"]) await writeFile(join(app, name), BACKEND);
  const compilerOptions = {
    ...{ strict: true, exactOptionalPropertyTypes: true, skipLibCheck: false, noEmitOnError: true },
    ...{ outDir: "out", target: "es2022", module: "node16", moduleResolution: "node16" },
    ...{ types: ["node"], typeRoots: [join(ROOT, "node_modules/@types")] },
  };
  const config = JSON.stringify({ compilerOptions, files: ["main.mts", "main.cts"] });
  await writeFile(join(app, "tsconfig.json"), config);
  t.equal(await shell.run(`${join(ROOT, "node_modules/.bin/tsc")} -p .`), "");
  for (const file of ["main.mjs", "main.cjs"])
    t.equal(
      await shell.run(`${process.execPath} out/${file} ${api}`),
      "true true channel_exists 3",
      file,
    );
}

async function installsSmall(t: Test, app: string, tarball: string) {
  await writeFile(join(app, "package.json"), '{"private":true,"type":"module"}');
  const shell = openTerminal(t, app, { npm_config_update_notifier: "false" });
  await install(shell, tarball);
  const modules = join(app, "node_modules");
  const lock = await readFile(join(modules, ".package-lock.json"), "utf8");
  const names = Object.keys(JSON.parse(lock).packages);
  t.ok(names.length <= MAX_PACKAGES, `the installed packages are ${names.join()}`);
  let bytes = 0;
  for (const name of names)
    for (const file of await readdir(join(app, name), { recursive: true }))
      bytes += (await bytesOf(join(app, name, file))) ?? 0;
  t.ok(bytes > 0 && bytes <= MAX_UNPACKED_BYTES, `the packages have ${bytes} bytes`);
}

/** Returns the size of a file, or `undefined` if it is a folder. */
async function bytesOf(file: string): Promise<number | undefined> {
  return readFile(file).then(
    ({ length }) => length,
    (error: NodeJS.ErrnoException) => {
      if (error.code !== "EISDIR") throw error;
      return undefined;
    },
  );
}

async function compiles(t: Test, app: string): Promise<void> {
  await writeFile(join(app, "talk.ts"), TALK);
  await writeFile(join(app, "main.ts"), MAIN);
  const shell = openTerminal(t, app);
  const tsc = join(ROOT, "node_modules/.bin/tsc");
  for (const [moduleResolution, module] of Object.entries(RESOLUTIONS)) {
    const compilerOptions = {
      strict: true,
      noEmitOnError: true,
      outDir: "out",
      target: "es2022",
      lib: ["es2022", "dom"],
      types: [],
      module,
      moduleResolution,
    };
    const config = JSON.stringify({ compilerOptions, files: ["main.ts"] });
    await writeFile(join(app, "tsconfig.json"), config);
    t.equal(await shell.run(`${tsc} -p .`), "", moduleResolution);
  }
}

/** CommonJS app. It compiles only if the types of the package accept its values. */
const COMMON_JS = `import {
  connect,
  group,
  JindouError,
  type LiveStream,
  type RecordStream,
  type StreamRecord,
} from "jindou-client";

interface Card {
  type: number;
  title: string;
}
const card: Card = { type: 1001, title: "x" };
const client = connect({
  url: "ws://127.0.0.1:1",
  uid: "alice",
  token: undefined,
  deviceId: undefined,
  timeouts: undefined,
  reconnect: { minMs: undefined, maxMs: undefined },
});
const calls = [
  client.send(group("g"), card, undefined),
  client.send(group("g"), { type: 1, content: "x" }, { expireS: undefined, tagKey: undefined }),
  client.send(group("g"), new DataView(new ArrayBuffer(1))),
  client.history(group("g"), { before: undefined, limit: undefined }),
];
const stream: LiveStream = client.stream({ channel: group("g"), clientMsgNo: "s" });
void stream.ready().catch(() => undefined);
const records: RecordStream<{ delta: string }> = client.stream(stream.snapshot().log);
const later: AsyncIterable<StreamRecord<{ delta: string }>> = records.records("now");
void later;
void Promise.allSettled(calls).then((results) => {
  for (const result of results)
    console.log(result.status === "rejected" && result.reason instanceof JindouError);
});
void client.close();
`;

async function loadsFromCommonJs(t: Test, app: string): Promise<void> {
  const shell = openTerminal(t, app);
  const tsc = join(ROOT, "node_modules/.bin/tsc");
  await writeFile(join(app, "common.cts"), COMMON_JS);
  const compilerOptions = {
    ...{ strict: true, exactOptionalPropertyTypes: true, skipLibCheck: false, noEmitOnError: true },
    ...{ outDir: "out", target: "es2022", lib: ["es2022", "dom"], types: [] },
    ...{ module: "node16", moduleResolution: "node16" },
  };
  const config = JSON.stringify({ compilerOptions, files: ["common.cts"] });
  await writeFile(join(app, "tsconfig.json"), config);
  t.equal(await shell.run(`${tsc} -p .`), "");
  const printed = await shell.run(`${process.execPath} out/common.cjs`);
  t.same(printed.split("\n"), Array(4).fill("true"));
}

async function hasOwnTypes(t: Test, app: string): Promise<void> {
  const folder = join(app, "node_modules/jindou-client");
  const types = await readFile(join(folder, "index.d.cts"), "utf8");
  t.notMatch(types, /\[(spec|decisions|issue)/, "no comment cites the server's specification");
  t.notMatch(types, /ChannelInfo|SessionRecord|firstMessageId/, "no server type is exported");
}

async function leadsToSources(t: Test, app: string): Promise<void> {
  const folder = join(app, "node_modules/jindou-client");
  const maps = (await readdir(folder)).filter((name) => name.endsWith(".map"));
  t.ok(maps.includes("index.js.map"));
  for (const name of maps) {
    const map = JSON.parse(await readFile(join(folder, name), "utf8"));
    for (const [n, path] of map.sources.entries()) {
      const source = await readFile(join(ROOT, path), "utf8");
      const lines = source.split("\n").length;
      const isOwn = path.startsWith("src/client/");
      t.equal(map.sourcesContent[n]?.split("\n").length, isOwn ? lines : undefined, path);
    }
  }
  const shell = openTerminal(t, app);
  const stack = await shell.run(`${process.execPath} --enable-source-maps out/main.js`);
  const line = /src\/client\/options\.ts:(\d+)/.exec(stack)?.[1];
  const source = await readFile(join(ROOT, "src/client/options.ts"), "utf8");
  t.match(source.split("\n")[Number(line) - 1], /new JindouError\(/, stack);
}
