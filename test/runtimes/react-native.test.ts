// The SDK as in a React Native app: bundled by Metro with React Native's Babel preset, and run by
// the engine Hermes against a real broker. The engine has neither sockets nor timers, so this
// process provides both, as React Native's host does. The engine has neither TextEncoder nor
// crypto. Only `npm run test:full` runs this test; .ci/runtimes installs what it needs.

import { execFileSync, spawn } from "node:child_process";
import { cp, readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import t, { type Test } from "tap";
import { WebSocket } from "ws";
import { CLIENT_PACKAGE, registerTalkers } from "../client/talk.ts";
import { spawnBroker, tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";
import { IS_FULL } from "../support/volume.ts";

const SCRIPT = fileURLToPath(new URL("../../.ci/runtimes", import.meta.url));
const skip = IS_FULL ? false : "only npm run test:full installs the runtimes";

const packages = execFileSync(SCRIPT, ["--print"], { encoding: "utf8" }).trim();

/** The app. `cut` ends the connections, which the host reports as lost. */
const APP = `import { connect, group } from "jindou-client";

globalThis.story = async (url) => {
  const login = (uid) => connect({ url, uid, token: uid + "-token", reconnect: { minMs: 10, maxMs: 20 } });
  const amy = login("amy");
  const ben = login("ben");
  const talk = group("talk");
  const received = [];
  const unread = [];
  let wake = () => undefined;
  const until = async (holds) => {
    while (!holds()) await new Promise((resolve) => { wake = resolve; });
  };
  ben.on("message", ({ content }) => { received.push(content.content); wake(); });
  ben.on("unread", (count) => { unread.push(count.unread); wake(); });
  await Promise.all([amy.ready(), ben.ready()]);
  const text = "grüß 𝄞 🙂 ".repeat(20) + "y".repeat(20000);
  const sent = await amy.send(talk, text);
  await amy.send(talk, new Uint8Array([123, 34, 116, 121, 112, 101, 34, 58, 49, 125]));
  await until(() => received.length === 2 && unread.length === 2);
  cut();
  await amy.send(talk, "after the loss");
  await until(() => received.length === 3);
  const { messages } = await ben.history(talk, { limit: 2 });
  const { uids } = await ben.members(talk);
  const refused = await amy.send(group("elsewhere"), "x").catch((error) => error.code);
  await Promise.all([amy.close(), ben.close()]);
  return {
    isSame: received[0] === text,
    received: received.slice(1),
    unread: unread.slice(0, 2),
    messageSeq: sent.messageSeq,
    history: messages.length,
    ...{ uids, refused, status: amy.status },
  };
};
`;

/** Bundles index.js as a React Native app does. The argument is the folder of the packages. */
const BUNDLE = `import { createRequire } from "node:module";
const packages = process.argv[2];
const require = createRequire(packages + "/");
const { getDefaultConfig, mergeConfig } = require("metro-config");
const projectRoot = import.meta.dirname;
const config = mergeConfig(await getDefaultConfig(projectRoot), {
  projectRoot,
  watchFolders: [projectRoot, packages],
  cacheStores: [],
  resolver: {
    nodeModulesPaths: [packages],
    resolverMainFields: ["react-native", "browser", "main"],
    unstable_conditionNames: ["react-native"],
  },
  transformer: { babelTransformerPath: require.resolve("@react-native/metro-babel-transformer") },
  serializer: { getPolyfills: () => [], getModulesRunBeforeMainModule: () => [] },
  reporter: { update: ({ error }) => error && console.error(error) },
});
await require("metro").runBuild(config, {
  entry: "index.js", platform: "android", dev: false, minify: false, out: projectRoot + "/bundle.js",
});
`;

/**
 * The functions that React Native adds to the engine. In a printed line, the JSON after @ is a
 * request to the host.
 */
const HOST = `
var tasks = {}, sockets = {}, last = 0;
var tell = function (request) { print("@" + JSON.stringify(request)); };
globalThis.global = globalThis;
globalThis.console = { log: print, warn: print, error: print };
globalThis.setTimeout = function (task, ms) {
  tasks[++last] = task;
  tell({ kind: "timer", id: last, ms: ms || 0 });
  return last;
};
globalThis.clearTimeout = function (id) { delete tasks[id]; };
globalThis.runTask = function (id) {
  var task = tasks[id];
  delete tasks[id];
  if (task) task();
};
globalThis.queueMicrotask = function (task) { Promise.resolve().then(task); };
globalThis.WebSocket = function (url, protocols) {
  this.id = ++last;
  sockets[last] = this;
  tell({ kind: "open", id: last, url: url, protocols: protocols });
};
WebSocket.prototype.send = function (data) {
  tell({ kind: "send", id: this.id, bytes: Array.from(new Uint8Array(data.buffer || data)
    .subarray(data.byteOffset || 0, (data.byteOffset || 0) + data.byteLength)) });
};
WebSocket.prototype.close = function (code) { tell({ kind: "close", id: this.id, code: code }); };
globalThis.cut = function () { tell({ kind: "cut" }); };
globalThis.fire = function (id, type, event) {
  if (event.bytes) event.data = new Uint8Array(event.bytes).buffer;
  var handler = sockets[id]["on" + type];
  if (handler) handler.call(sockets[id], event);
};
`;

type HostRequest =
  | { readonly kind: "timer"; readonly id: number; readonly ms: number }
  | {
      readonly kind: "open";
      readonly id: number;
      readonly url: string;
      readonly protocols: string[];
    }
  | { readonly kind: "send"; readonly id: number; readonly bytes: readonly number[] }
  | { readonly kind: "close"; readonly id: number; readonly code?: number }
  | { readonly kind: "cut" }
  | { readonly kind: "result"; readonly result: unknown };

/**
 * Runs the bundle in Hermes. Returns the result of its function `story`, or the text of an error.
 */
function runInHermes(t: Test, bundle: string, url: string): Promise<unknown> {
  const binary = join(packages, "hermes-engine-cli/linux64-bin/hermes");
  const child = spawn(...tieToParent(binary, []));
  t.teardown(() => child.kill());
  const sockets = new Map<number, WebSocket>();
  /** Evaluates code in the engine, which reads one line at a time. */
  const evaluate = (code: string) =>
    child.stdin.write(`(0, eval)(${JSON.stringify(code)}), undefined\n`);
  function open({ id, url, protocols }: Extract<HostRequest, { kind: "open" }>): void {
    const socket = new WebSocket(url, protocols);
    const fire = (type: string, event: object) =>
      evaluate(`fire(${id}, "${type}", ${JSON.stringify(event)})`);
    sockets.set(id, socket);
    t.teardown(() => socket.terminate());
    socket.on("open", () => fire("open", {}));
    socket.on("message", (data: Buffer) => fire("message", { bytes: [...data] }));
    socket.on("error", ({ message }) => fire("error", { message }));
    socket.on("close", (code) => fire("close", { code }));
  }
  return new Promise((resolve, reject) => {
    let output = "";
    createInterface({ input: child.stdout }).on("line", (line) => {
      const at = line.indexOf("@{");
      if (at < 0) {
        output += `${line}\n`;
        return;
      }
      const request: HostRequest = JSON.parse(line.slice(at + 1));
      switch (request.kind) {
        case "timer":
          setTimeout(() => evaluate(`runTask(${request.id})`), request.ms).unref();
          break;
        case "open":
          open(request);
          break;
        case "send":
          sockets.get(request.id)?.send(Uint8Array.from(request.bytes));
          break;
        case "close":
          sockets.get(request.id)?.close(request.code);
          break;
        case "cut":
          for (const socket of sockets.values()) socket.terminate();
          break;
        case "result":
          child.stdin.end();
          resolve(request.result);
      }
    });
    child.on("exit", () => reject(new Error(`Hermes ended: ${output}`)));
    evaluate(HOST);
    evaluate(bundle);
    const report = 'function (result) { tell({ kind: "result", result: result }); }';
    const fail = "function (error) { return String((error && error.stack) || error); }";
    evaluate(`story(${JSON.stringify(url)}).catch(${fail}).then(${report})`);
  });
}

t.test(
  "the SDK, bundled by Metro, exchanges messages, reconnects and counts unread messages in Hermes",
  { skip, timeout: 300_000 },
  async (t) => {
    const folder = await tempFolder(t);
    await cp(CLIENT_PACKAGE, join(folder, "node_modules/jindou-client"), { recursive: true });
    await writeFile(join(folder, "package.json"), '{"private":true}');
    await writeFile(join(folder, "index.js"), APP);
    await writeFile(join(folder, "bundle.mjs"), BUNDLE);
    const node = join(packages, "node24/bin/node");
    execFileSync(node, ["bundle.mjs", packages], { cwd: folder, stdio: "pipe" });
    const bundle = await readFile(join(folder, "bundle.js"), "utf8");
    t.notMatch(bundle, /createServer|ws\.cjs/, "the bundle does not contain `ws`");
    const broker = await spawnBroker(t);
    await registerTalkers(broker);
    const result = await runInHermes(t, bundle, `ws://127.0.0.1:${broker.clientPort}`);
    t.same(result, {
      isSame: true,
      received: [undefined, "after the loss"],
      unread: [1, 2],
      messageSeq: 1,
      history: 2,
      uids: ["amy", "ben"],
      refused: "not_subscriber",
      status: "closed",
    });
  },
);
