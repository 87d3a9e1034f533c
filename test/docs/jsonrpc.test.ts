// Tests of `docs/protocol/jsonrpc.md`: its sample session runs against a broker, its tables equal
// those in the code, and both example clients connect, send, receive, resume after a connection
// loss and read a stream.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, type Socket, connect as tcp } from "node:net";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import t, { type Test } from "tap";
import { ERRORS, type ErrorCode } from "../../src/broker/errors.ts";
import { reasonOf } from "../../src/compat/wukongim/reason-codes.ts";
import { METHODS } from "../../src/protocol/jsonrpc/decode.ts";
import { eventually, group, startWorld, type World, wire } from "../behaviour/world.ts";
import { launchBrowser } from "../client/browser.ts";
import { tieToParent } from "../support/child.ts";
import { type Json, openJsonRpc } from "../support/jsonrpc-client.ts";
import { namedRows, ROOT, readPage, section } from "./pages.ts";

const PAGE = readPage("docs/protocol/jsonrpc.md");
const EXAMPLES = join(ROOT, "docs/examples/jsonrpc");
const TEAM = group("team");

/** Fields whose values differ from run to run. */
const VARYING = new Set([
  ...["messageId", "sessionId", "nodeId", "serverTimeMs", "newestId", "changedAtMs"],
  ...["timestampMs", "eventId"],
]);

t.test("a broker responds as the sample session in docs/protocol/jsonrpc.md shows", async (t) => {
  const world = await startWorld(t);
  await world.register("bob", { token: "secret" });
  const [, session = ""] = /```session\n([^`]+)```/.exec(PAGE) ?? [];
  const lines = session.trim().split("\n");
  t.ok(lines.length > 25);
  const client = await openJsonRpc(t, { port: world.clientPort });
  const unmatched: string[] = [];
  let readCount = 0;
  for (const line of lines) {
    const [mark, text] = [line[0], line.slice(2)];
    if (mark === ">") client.raw(text);
    else if (mark === "!") {
      const [, path = "", body = ""] = /^POST (\S+) (.+)$/.exec(text) ?? [];
      await world.ok(path, JSON.parse(body));
    } else {
      const expected = masked(text);
      await client
        .waitFor(() => {
          unmatched.push(...client.texts.slice(readCount).map(masked));
          readCount = client.texts.length;
          return unmatched.includes(expected);
        })
        .catch(() => t.same(unmatched, [expected], "the next line of the session is received"));
      unmatched.splice(unmatched.indexOf(expected), 1);
    }
  }
  t.match(await client.closed, { code: 4206 });
  t.same(unmatched, [], "the session shows every line that is received");
});

t.test("docs/protocol/jsonrpc.md lists every method and every possible reason code", async (t) => {
  const requests = namedRows(section(PAGE, "## Requests"));
  const documented = [...requests.keys(), "recvack", "disconnect"];
  t.same(documented.sort(), [...METHODS.keys()].sort());
  const listed = new Set(
    [...section(PAGE, "## WuKongIM's clients").matchAll(/^\| (\d+) \|/gm)].map(([, reason]) =>
      Number(reason),
    ),
  );
  for (const code of Object.keys(ERRORS) as ErrorCode[])
    if (reasonOf(code) !== 11) t.ok(listed.has(reasonOf(code)), code); // no request of a client is refused with `forbidden`
});

t.test(
  "the Python example has at most 60 lines and receives messages and a stream, even after a connection loss",
  async (t) => {
    const path = join(EXAMPLES, "client.py");
    const lines = readFileSync(path, "utf8").trimEnd().split("\n").length;
    t.ok(lines <= 60, `the example has ${lines} lines`);
    const world = await startWorld(t);
    const alice = await prepare(t, world);
    const link = await openCuttablePort(t, world.clientPort);
    const modules = execFileSync(join(ROOT, ".ci/python"), ["--print"], {
      encoding: "utf8",
    }).trim();
    const url = `ws://127.0.0.1:${link.port}`;
    const child = spawn(...tieToParent("python3", [path, url, "bob", "token-bob", "team"]), {
      stdio: ["ignore", "pipe", "pipe"],
      env: { PATH: process.env.PATH, PYTHONPATH: modules },
    });
    let output = "";
    let errors = "";
    child.stdout.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
    child.stderr.setEncoding("utf8").on("data", (text: string) => {
      errors += text;
    });
    const exited = once(child, "exit");
    const untilPrinted = (line: string) =>
      eventually(() => {
        if (child.exitCode !== null && !output.includes(line))
          throw new Error(`the example exited: ${output}\n${errors}`);
        return output.includes(`${line}\n`);
      });
    await alice.waitFor(() => alice.messages.length === 1, "hello");
    await world.send("alice", TEAM, "one");
    await untilPrinted("alice: one");
    const restore = link.cut();
    await untilPrinted("cut off");
    await world.send("alice", TEAM, "two");
    restore();
    await untilPrinted("alice: two");
    await startHello(world);
    await untilPrinted("alice writes: Hello ü 🐂");
    const reconnect = link.cut();
    await eventually(() => output.match(/cut off\n/g)?.length === 2);
    await endHello(world);
    reconnect();
    await untilPrinted("alice writes: Hello ü 🐂!");
    t.equal((await exited)[0], 0, "the example exits after the stream");
    t.equal(errors, "", "the example prints no errors");
    t.equal(output.match(/alice: two/g)?.length, 1, "the message is printed once");
  },
);

t.test(
  "the HTML example sends and receives messages and receives a stream, even after a connection loss",
  async (t) => {
    const world = await startWorld(t);
    await prepare(t, world);
    const link = await openCuttablePort(t, world.clientPort);
    const page = await (await launchBrowser(t)).newPage();
    page.on("pageerror", (error) => t.fail(`error in the page: ${error.message}`));
    await page.goto(pathToFileURL(join(EXAMPLES, "page.html")).href);
    const fields = {
      url: `ws://127.0.0.1:${link.port}`,
      ...{ uid: "bob", token: "token-bob", group: "team" },
    };
    for (const [name, value] of Object.entries(fields)) await page.fill(`[name=${name}]`, value);
    await page.click("#login button");
    const untilShown = (text: string) =>
      eventually(async () => (await page.textContent("body"))?.includes(text) ?? false);
    await eventually(async () => (await page.textContent("#state")) === "connected");
    await page.fill("[name=text]", "hello");
    await page.click("#say button");
    await untilShown("me: hello (1)");
    await world.send("alice", TEAM, "one");
    await untilShown("alice: one");
    const restore = link.cut();
    await world.send("alice", TEAM, "two");
    restore();
    await untilShown("alice: two");
    await startHello(world);
    await untilShown("alice: Hello ü 🐂");
    const reconnect = link.cut();
    await endHello(world);
    reconnect();
    await untilShown("alice: Hello ü 🐂!");
    const items = await page.locator("#log li").allTextContents();
    t.same(items, [...["me: hello (1)", "alice: one", "alice: two", "alice: Hello ü 🐂!"]]);
  },
);

/** Registers bob and creates the group, then connects alice. */
async function prepare(t: Test, world: World) {
  for (const flag of [0, 1] as const) await world.register("bob", { flag });
  await world.ok("/channel", { ...wire(TEAM), subscribers: ["alice", "bob"] });
  return world.join(t, "alice");
}

/** Starts a short stream from alice to the group. */
async function startHello(world: World): Promise<void> {
  await postEvent(world, "___TextMessageStart", "");
  for (const piece of ["Hel", "lo ü 🐂"]) await postEvent(world, "___TextMessageContent", piece);
}

async function endHello(world: World): Promise<void> {
  await postEvent(world, "___TextMessageContent", "!");
  await postEvent(world, "___TextMessageEnd", "");
}

function postEvent(world: World, type: string, data: string) {
  return world.ok("/event", {
    ...{ ...wire(TEAM), from_uid: "alice", client_msg_no: "s-1" },
    event: { type, data },
  });
}

/**
 * Opens a port that is connected to the broker's port. `cut` closes its connections and refuses new
 * ones until the function that it returns is called.
 */
async function openCuttablePort(t: Test, port: number) {
  const sockets = new Set<Socket>();
  let isCut = false;
  const server = createServer((near) => {
    const far = tcp(port, "127.0.0.1");
    for (const socket of [near, far]) {
      sockets.add(socket);
      socket.on("error", () => {}); // the other end was destroyed
      socket.on("close", () => {
        sockets.delete(socket);
        near.destroy();
        far.destroy();
      });
    }
    if (isCut) near.destroy();
    else near.pipe(far).pipe(near);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const cut = () => {
    isCut = true;
    for (const socket of sockets) socket.destroy();
    return () => {
      isCut = false;
    };
  };
  t.teardown(() => {
    cut();
    server.close();
  });
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("the server has no port");
  return { port: address.port, cut };
}

/**
 * Returns the JSON text with each varying value replaced by its type. The keys keep their order.
 */
function masked(text: string): string {
  return JSON.stringify(JSON.parse(text), (key, value: Json) =>
    VARYING.has(key) ? typeof value : value,
  );
}
