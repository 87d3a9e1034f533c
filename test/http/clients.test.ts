// The eight calls of the specification, made with the HTTP clients that backends use, on the native
// listener and on `api.compatListen`.

import { execFile, execFileSync, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { delimiter, join } from "node:path";
import { promisify } from "node:util";
import t from "tap";
import { ROOT } from "../docs/pages.ts";
import { startBroker, tempFolder } from "../support/broker.ts";
import { tieToParent } from "../support/child.ts";

const CLIENTS = join(ROOT, "test/http/clients");
const print = (script: string) =>
  execFileSync(join(ROOT, ".ci", script), ["--print"], { encoding: "utf8" }).trim();
const TOOLS = print("tools");
const PACKAGES = join(print("generators"), "python");
const PATH = [process.env.PATH, join(TOOLS, "usr/bin")].join(delimiter);
const LIBRARIES = join(TOOLS, "usr/lib/x86_64-linux-gnu");
const PASSWORD = "correct horse";

const LOBBY = { channel_id: "lobby", channel_type: 2 };
const CALLS: readonly (readonly [method: string, path: string, body?: unknown])[] = [
  ["POST", "/user/token", { uid: "alice", token: "secret", device_flag: 1 }],
  ["POST", "/user/onlinestatus", ["alice", "bob"]],
  ["POST", "/channel", { ...LOBBY, subscribers: ["alice", "bob"] }],
  ["POST", "/message/send", { ...LOBBY, from_uid: "bob", payload: "eyJ0eXBlIjoxfQ==" }],
  ["POST", "/event", { ...LOBBY, client_msg_no: "s", event: { type: "typing", data: "é" } }],
  ["POST", "/channel/subscriber_remove", { ...LOBBY, subscribers: ["bob"] }],
  ["POST", "/manager/login", { username: "admin", password: PASSWORD }],
  ["GET", "/migrate/result"],
];

interface HttpClient {
  readonly name: string;
  readonly program: string;
  /** Arguments before the address and the file of calls, and after them. */
  readonly before: readonly string[];
  readonly after?: readonly string[];
  /** True if the native listener does not serve the client (docs/http.md). */
  readonly isCompatOnly?: boolean;
}

const python = (name: string): HttpClient => ({
  name: `Python's ${name}`,
  program: "python3",
  before: [join(CLIENTS, "calls.py")],
  after: [name],
});
const java = (version: string, expect: boolean): HttpClient => ({
  name: `Java's HttpClient with ${version}${expect ? " and expectContinue" : ""}`,
  program: "java",
  before: [join(CLIENTS, "Calls.java")],
  after: [version, String(expect)],
  isCompatOnly: expect,
});
const HTTP_CLIENTS: readonly HttpClient[] = [
  { name: "curl", program: "curl", before: ["sh", join(CLIENTS, "curl.sh")] },
  { name: "wget", program: "wget", before: ["sh", join(CLIENTS, "wget.sh")] },
  ...["requests", "httpx", "aiohttp"].map(python),
  java("HTTP_1_1", false),
  java("HTTP_2", false),
  java("HTTP_1_1", true),
  { name: "Go's net/http", program: "go", before: ["run", join(CLIENTS, "calls.go")] },
];

const execute = promisify(execFile);

/** Returns why the client cannot be tested, `false` if it can. */
function skipOf({ name, program, after: [argument = ""] = [] }: HttpClient): string | false {
  const folders = PATH.split(delimiter);
  if (!folders.some((folder) => existsSync(join(folder, program))))
    return `${program} is not installed`;
  if (program !== "python3") return false;
  const env = { ...process.env, PYTHONPATH: PACKAGES };
  const { status } = spawnSync("python3", ["-c", `import ${argument}`], { env });
  return status === 0 ? false : `${name} is not installed`;
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (address === null || typeof address === "string") throw new Error("the port is unknown");
  return address.port;
}

for (const client of HTTP_CLIENTS)
  t.test(
    `${client.name} makes the eight calls of the specification on ${client.isCompatOnly ? "api.compatListen" : "the API's listeners"}`,
    { skip: skipOf(client) },
    async (t) => {
      const folder = await tempFolder(t);
      const file = join(folder, "calls");
      const lines = CALLS.map(([method, path, body]) =>
        [method, path, body === undefined ? "" : JSON.stringify(body)].join("\t"),
      );
      await writeFile(file, `${lines.join("\n")}\n`);
      for (const isCompat of client.isCompatOnly ? [true] : [false, true]) {
        const compatPort = await freePort();
        const { apiPort } = await startBroker(t, {
          JINDOU_ADMIN_PASSWORD: PASSWORD,
          JINDOU_API_COMPAT_LISTEN: `127.0.0.1:${compatPort}`,
        });
        const url = `http://127.0.0.1:${isCompat ? compatPort : apiPort}`;
        const command =
          client.before[0] === "sh" ? client.before : [client.program, ...client.before];
        const [program = "", ...args] = [...command, url, file, ...(client.after ?? [])];
        const { stdout } = await execute(...tieToParent(program, args), {
          env: { ...process.env, PATH, PYTHONPATH: PACKAGES, no_proxy: "*", NO_PROXY: "*" },
        });
        t.equal(stdout.trim(), CALLS.map(() => "200").join("\n"), url);
      }
    },
  );

t.test(
  "ab and wget --spider get every reply of api.compatListen",
  {
    skip:
      existsSync(join(TOOLS, "usr/bin/ab")) || existsSync("/usr/bin/ab")
        ? false
        : "ab is not installed",
  },
  async (t) => {
    const port = await freePort();
    await startBroker(t, { JINDOU_API_COMPAT_LISTEN: `127.0.0.1:${port}` });
    const url = `http://127.0.0.1:${port}/readyz`;
    const env = { ...process.env, PATH, LD_LIBRARY_PATH: LIBRARIES, no_proxy: "*" };
    for (const flags of [[], ["-k"]]) {
      const { stdout } = await execute("ab", ["-q", "-n", "20", "-c", "4", ...flags, url], { env });
      t.match(stdout, /Complete requests: +20\n/);
      t.match(stdout, /Failed requests: +0\n/);
      t.notMatch(stdout, /Non-2xx/);
    }
    await execute("wget", ["--spider", "-q", url], { env });
  },
);
