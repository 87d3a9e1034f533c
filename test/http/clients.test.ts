// The eight calls of the specification, made with the HTTP clients that backends use, and calls of
// load generators, on the native listener and on `api.compatListen`.

import { execFile, execFileSync, spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
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

/**
 * Returns the entries of a folder of the downloaded tools, an empty list if the folder does not
 * exist.
 */
function foldersIn(path: string): readonly string[] {
  const folder = join(TOOLS, path);
  return existsSync(folder) ? readdirSync(folder).map((name) => join(folder, name)) : [];
}

const ENVIRONMENT = {
  ...process.env,
  PATH,
  LD_LIBRARY_PATH: LIBRARIES,
  PYTHONPATH: PACKAGES,
  RUBYLIB: ["usr/lib/ruby", "usr/lib/x86_64-linux-gnu/ruby"].flatMap(foldersIn).join(delimiter),
  no_proxy: "*",
  NO_PROXY: "*",
};

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
  /** Arguments before the address and the file with the calls. */
  readonly before: readonly string[];
  /** Arguments after the address and the file with the calls. */
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
/** PHP arguments that load the downloaded curl extension. PHP's configuration does not load it. */
const CURL = foldersIn("usr/lib/php")
  .map((folder) => join(folder, "curl.so"))
  .filter((file) => existsSync(file))
  .map((file) => `-dextension=${file}`);
const php = (kind: string): HttpClient => ({
  name: `PHP with ${kind}`,
  program: "php",
  before: [...(kind === "curl" ? CURL : []), join(CLIENTS, "calls.php")],
  after: [kind],
});
const HTTP_CLIENTS: readonly HttpClient[] = [
  { name: "curl", program: "curl", before: ["sh", join(CLIENTS, "curl.sh")] },
  { name: "wget", program: "wget", before: ["sh", join(CLIENTS, "wget.sh")] },
  ...["requests", "httpx", "aiohttp"].map(python),
  java("HTTP_1_1", false),
  java("HTTP_2", false),
  java("HTTP_1_1", true),
  { name: "Go's net/http", program: "go", before: ["run", join(CLIENTS, "calls.go")] },
  ...["streams", "curl"].map(php),
  {
    name: "Ruby's net/http",
    program: "ruby",
    before: ["--disable-gems", join(CLIENTS, "calls.rb")],
  },
];

const execute = promisify(execFile);

/** Returns the reason why the program cannot be used, `false` if it can be used. */
function missing(program: string): string | false {
  const folders = PATH.split(delimiter);
  const isInstalled = folders.some((folder) => existsSync(join(folder, program)));
  return isInstalled ? false : `${program} is not installed`;
}

/** Returns the reason why the client cannot be tested, `false` if it can be tested. */
function skipOf({ name, program, after: [argument = ""] = [] }: HttpClient): string | false {
  const check = { python3: ["-c", `import ${argument}`], php: [...CURL, "-r", "curl_init();"] };
  if (missing(program) || (program !== "python3" && argument !== "curl")) return missing(program);
  const args = check[program as keyof typeof check];
  const { status } = spawnSync(program, args, { env: ENVIRONMENT });
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
    `${client.name} makes eight successful API calls on ${client.isCompatOnly ? "api.compatListen" : "api.listen and api.compatListen"}`,
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
        const { stdout } = await execute(...tieToParent(program, args), { env: ENVIRONMENT });
        t.equal(stdout.trim(), CALLS.map(() => "200").join("\n"), url);
      }
    },
  );

interface Generator {
  readonly program: string;
  /** Arguments for several calls to `url`. The body of a call is in the file `body`. */
  args(url: string): readonly string[];
  /** Matches the output if every reply was 200. */
  readonly expected: RegExp;
  /** Matches the output if a call failed. */
  readonly failed?: RegExp;
  readonly isCompatOnly?: boolean;
}

const AB = ["-q", "-n", "20", "-c", "4", "-T", "application/json", "-p", "body"];
const GENERATORS: readonly Generator[] = [
  {
    program: "ab",
    args: (url) => [...AB, url],
    expected: /Complete requests: +20\nFailed requests: +0\n/,
    failed: /Non-2xx/,
    isCompatOnly: true,
  },
  {
    program: "ab",
    args: (url) => ["-k", ...AB, url],
    expected: /Complete requests: +20\nFailed requests: +0\nKeep-Alive requests: +20\n/,
    failed: /Non-2xx/,
    isCompatOnly: true,
  },
  {
    program: "wrk",
    args: (url) => ["-t1", "-c4", "-d1s", "-s", "call.lua", url],
    expected: /[1-9]\d* requests in/,
    failed: /Non-2xx|Socket errors/,
  },
  {
    program: "hey",
    args: (url) => [
      "-n",
      "20",
      "-c",
      "4",
      "-m",
      "POST",
      "-T",
      "application/json",
      "-D",
      "body",
      url,
    ],
    expected: /\[200\]\t20 responses/,
    failed: /Error distribution/,
  },
  {
    program: "vegeta",
    args: () => ["attack", "-targets=targets", "-rate=40", "-duration=500ms", "-output=results"],
    expected: /^$/,
  },
];
const BODY = '["alice","bob"]';

for (const { program, args, expected, failed, isCompatOnly = false } of GENERATORS)
  t.test(
    `${[program, ...args("").slice(0, 1)].join(" ")} gets only successful replies from ${isCompatOnly ? "api.compatListen" : "api.listen and api.compatListen"}`,
    { skip: missing(program) },
    async (t) => {
      const port = await freePort();
      const { apiPort } = await startBroker(t, { JINDOU_API_COMPAT_LISTEN: `127.0.0.1:${port}` });
      const cwd = await tempFolder(t);
      for (const used of isCompatOnly ? [port] : [apiPort, port]) {
        const url = `http://127.0.0.1:${used}/user/onlinestatus`;
        const script = `wrk.method = "POST"\nwrk.body = '${BODY}'\nwrk.headers["content-type"] = "application/json"\n`;
        const target = `POST ${url}\ncontent-type: application/json\n@${join(cwd, "body")}\n`;
        await writeFile(join(cwd, "body"), BODY);
        await writeFile(join(cwd, "call.lua"), script);
        await writeFile(join(cwd, "targets"), target);
        const run = (list: readonly string[]) =>
          execute(...tieToParent(program, list), { cwd, env: ENVIRONMENT });
        const { stdout } = await run(args(url));
        t.match(stdout, expected, url);
        if (failed !== undefined) t.notMatch(stdout, failed, url);
        if (program !== "vegeta") continue;
        const report = await run(["report", "-type=json", "results"]);
        t.match(JSON.parse(report.stdout), { requests: 20, success: 1 }, url);
      }
    },
  );

t.test(
  "wget --spider succeeds on api.listen and api.compatListen",
  { skip: missing("wget") },
  async (t) => {
    const port = await freePort();
    const { apiPort } = await startBroker(t, { JINDOU_API_COMPAT_LISTEN: `127.0.0.1:${port}` });
    for (const used of [apiPort, port])
      await execute("wget", ["--spider", "-q", `http://127.0.0.1:${used}/readyz`], {
        env: ENVIRONMENT,
      });
  },
);
