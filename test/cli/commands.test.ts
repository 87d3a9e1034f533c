// Tests of the commands that call a running node (`health`, `token`, `send`, `history`, `watch` and
// `events`), on the embedded store and on Redis: their output and their exit codes.

import { once } from "node:events";
import { writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { type AddressInfo, createServer as createTcpServer } from "node:net";
import { join } from "node:path";
import t, { type Test } from "tap";
import { CLIENT_COMMANDS } from "../../src/config/help.ts";
import { jindou, spawnJindou } from "../main/jindou.ts";
import {
  type ChildBroker,
  launchBroker,
  type Settings,
  spawnBroker,
  tempFolder,
} from "../support/broker.ts";
import { freePort, startRedis } from "../support/redis.ts";
import { openShell, type Shell } from "./shell.ts";

const SECRET = "0123456789abcdef-secret";

/** A broker, and a shell whose commands call it. */
interface World {
  readonly broker: ChildBroker;
  readonly shell: Shell;
  /** Credential for calls of the test itself. */
  readonly headers: Settings;
}

const WORLDS: Readonly<Record<string, (t: Test) => Promise<World>>> = {
  "the embedded store without a credential": async (t) => {
    const broker = await spawnBroker(t);
    return { broker, shell: openShell(t, broker), headers: {} };
  },
  "Redis with a static token": async (t) => {
    const redis = await startRedis(t);
    const broker = await spawnBroker(t, { JINDOU_REDIS_URL: redis.url, JINDOU_API_TOKEN: SECRET });
    const file = join(await tempFolder(t), "token");
    await writeFile(file, `${SECRET}\n`);
    const shell = openShell(t, broker, { JINDOU_API_TOKEN_FILE: file });
    return { broker, shell, headers: { token: SECRET } };
  },
  "the embedded store in the dialect wukongim with a manager": async (t) => {
    const settings = { JINDOU_API_DIALECT: "wukongim", JINDOU_AUTH_API: "required" };
    const broker = await spawnBroker(t, { ...settings, JINDOU_ADMIN_PASSWORD: SECRET });
    const shell = openShell(t, broker, { JINDOU_ADMIN_PASSWORD: SECRET });
    const login = { username: "admin", password: SECRET };
    const { body } = await broker.call("/manager/login", login);
    return { broker, shell, headers: { authorization: `Bearer ${body.token}` } };
  },
};

for (const [place, start] of Object.entries(WORLDS))
  t.test(`a user at a shell can send, watch and read messages on ${place}`, async (t) => {
    const { broker, shell, headers } = await start(t);
    const event = async ([type, data]: readonly [string, string]) => {
      const stream = { channel_id: "lobby", channel_type: 2, client_msg_no: "answer" };
      const body = { ...stream, from_uid: "bob", event: { type, data } };
      t.equal((await broker.call("/event", body, headers)).status, 200, type);
    };
    t.match(await shell.run(["health"]), { code: 0, stdout: /^The node at http\S+ is ready\.\n$/ });

    const token = await shell.run(["token", "alice"]);
    t.match(token, { code: 0, stdout: /^[\w-]{32}\n$/, stderr: "" });
    const group = { channel_id: "lobby", channel_type: 2, subscribers: ["alice", "bob"] };
    t.equal((await broker.call("/channel", group, headers)).status, 200);

    const watching = shell.start(
      ["watch", `--client=ws://127.0.0.1:${broker.clientPort}`, "--count=3", "alice"],
      { JINDOU_USER_TOKEN: token.stdout },
    );
    await watching.untilShown(/^Connected to ws:\S+ as alice\. /m);
    const personal = ["send", "--from=bob", "--to=alice", "--client-msg-no=first", "\u001b[31mred"];
    const sent = await shell.run(personal);
    t.match(sent, { code: 0, stdout: /^Sent message \d+, seq 1\.\n$/, stderr: "" });
    const retry = await shell.run(personal);
    if (place.includes("wukongim")) t.equal(retry.stdout, sent.stdout, "a retry is not reported");
    else {
      t.equal(retry.stdout, `Already ${sent.stdout.replace("Sent", "sent")}`, "a retry");
      const reused = await shell.run([...personal.slice(0, -1), "another text"]);
      t.match(reused, { code: 1, stdout: "", stderr: /new client_msg_no/ });
    }
    await event(["___TextMessageStart", ""]);
    await event(["___TextMessageContent", "It is "]);
    await watching.untilShown(/bob writes: It is \n/);
    await event(["___TextMessageContent", "late."]);
    await event(["___TextMessageEnd", ""]);
    await watching.untilShown(/bob stream closed/);
    const toGroup = ["send", "--json", "--from=bob", "--group=lobby"];
    const piped = await shell.run(toGroup, { input: "a text\nof two lines\n" });
    t.equal(piped.code, 0);
    t.match(JSON.parse(piped.stdout), { message_seq: 2 });
    const watched = await watching.exit;
    t.equal(watched.code, 0, "the command ends after three messages");
    const shown = watched.stdout.replaceAll(/^\S+ /gm, ""); // without the times
    t.match(shown, /^@bob #1 bob: \\u001b\[31mred\nlobby #1 bob: \(a stream begins\)\n/);
    t.match(shown, /\nlobby #1 bob writes: It is \nlobby #1 bob writes: late\.\n/);
    t.match(shown, /\nlobby #2 bob: a text\\nof two lines\n$/);

    const conversation = await shell.run(["history", "--user=alice", "--with=bob"]);
    t.match(conversation, { code: 0, stdout: /^\S+ @bob #1 bob: \\u001b\[31mred\n$/, stderr: "" });
    const messages = await shell.run(["history", "--group=lobby"]);
    t.match(messages.stdout, /#1 bob: It is late\. \(stream closed\)\n.*#2 bob: a text\\nof two/);
    const newest = await shell.run(["history", "--group=lobby", "--limit=1"]);
    t.match(newest, { stdout: /^\S+ lobby #2 [^\n]+\n$/, stderr: /--before=2/ });
    const first = await shell.run(["history", "--group=lobby", "--after=0", "--limit=1", "--json"]);
    t.match(JSON.parse(first.stdout), { message_seq: 1, stream: { text: "It is late." } });
    const range = ["--after=0", "--before=3", "--limit=1"];
    const between = await shell.run(["history", "--group=lobby", ...range]);
    t.match(between, { stdout: / #1 bob/, stderr: /--after=1 --before=3 shows/ });
    const earlier = await shell.run(["history", "--group=lobby", "--before=1"]);
    t.match(earlier, { code: 0, stdout: "" });

    const refused = await shell.run(["send", "--from=bob", "--group=no@group", "hello"]);
    t.match(refused, { code: 1, stdout: "", stderr: /^jindou: [^\n]+\.\n$/ });
  });

t.test(
  "`jindou watch --json` registers a token itself, prints JSON, and exits with 0 on SIGINT",
  async (t) => {
    const broker = await spawnBroker(t);
    const shell = openShell(t, broker);
    const client = `--client=ws://127.0.0.1:${broker.clientPort}`;
    const watching = shell.start(["watch", client, "--json", "alice"]);
    await watching.untilShown(/^Connected/m);
    t.equal((await shell.run(["send", "--from=bob", "--to=alice", "hello"])).code, 0);
    await watching.untilShown(/\}\n$/);
    const { code, stdout } = await watching.stop("SIGINT");
    t.equal(code, 0);
    t.match(JSON.parse(stdout), {
      event: "message",
      from_uid: "bob",
      channel_id: "bob",
      channel_type: 1,
      message_seq: 1,
      payload: Buffer.from('{"type":1,"content":"hello"}').toString("base64"),
    });
  },
);

t.test("`jindou watch` exits with 0 on SIGINT while the API does not answer", async (t) => {
  const node = createServer();
  const called = once(node, "request");
  await new Promise<void>((resolve) => node.listen(0, "127.0.0.1", resolve));
  t.teardown(() => node.close());
  const api = `--api=http://127.0.0.1:${(node.address() as AddressInfo).port}`;
  const client = `--client=ws://127.0.0.1:${await freePort()}`;
  const watching = spawnJindou(t, ["watch", api, client, "alice"]);
  await called;
  watching.child.kill("SIGINT");
  t.match(await watching.exit, { code: 0, stderr: "" });
});

t.test("`jindou watch --count` prints no more messages than the count", async (t) => {
  const broker = await spawnBroker(t);
  const shell = openShell(t, broker);
  const client = `--client=ws://127.0.0.1:${broker.clientPort}`;
  const watching = shell.start(["watch", client, "--json", "--count=2", "alice"]);
  await watching.untilShown(/^Connected/m);
  const message = { from_uid: "bob", channel_id: "alice", channel_type: 1 };
  const payload = btoa('{"type":1,"content":"hello"}');
  await Promise.all(
    Array.from({ length: 50 }, () => broker.call("/message/send", { ...message, payload })),
  );
  const { code, stdout } = await watching.exit;
  t.equal(code, 0);
  t.equal(stdout.trim().split("\n").length, 2);
});

t.test("without --api, the commands call the node that the environment configures", async (t) => {
  const [apiPort, clientPort] = [await freePort(), await freePort()];
  const settings = {
    JINDOU_API_LISTEN: `0.0.0.0:${apiPort}`,
    JINDOU_CLIENT_LISTEN: `0.0.0.0:${clientPort}`,
    JINDOU_API_TOKEN: SECRET,
  };
  await spawnBroker(t, settings);
  const health = await jindou(t, ["health"], { env: settings });
  t.match(health, { code: 0, stdout: `The node at http://127.0.0.1:${apiPort} is ready.\n` });
  const wrong = { ...settings, JINDOU_USER_TOKEN: "wrong" };
  const watching = await jindou(t, ["watch", "alice"], { env: wrong });
  t.match(watching, { code: 1, stderr: /^jindou: [^\n]*token[^\n]*\.\n$/i });
});

t.test(
  "each command that calls a node has a help text with its usage, its address flag and an example",
  async (t) => {
    const commands = Object.keys(CLIENT_COMMANDS);
    const helps = await Promise.all(commands.map((command) => jindou(t, [command, "--help"])));
    for (const [index, { code, stdout, stderr }] of helps.entries()) {
      const command = commands[index];
      t.match({ code, stderr }, { code: 0, stderr: "" });
      t.match(stdout, new RegExp(`^Usage: jindou ${command} `));
      const flag = command === "import" ? "from" : "api";
      t.match(stdout, new RegExp(`\n {2}--${flag}=<url> [^]*\nExample: jindou ${command}\\b`));
    }
  },
);

/** Starts a server that answers each request with this status and text. */
async function startOther(t: Test, status: number, text: string): Promise<string> {
  const server = createServer((_request, response) => response.writeHead(status).end(text));
  server.listen(0, "127.0.0.1");
  t.teardown(() => server.close());
  await once(server, "listening");
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

t.test(
  "a failed command prints one line on standard error that explains the failure",
  async (t) => {
    const broker = await spawnBroker(t, { JINDOU_API_TOKEN: SECRET });
    const waitingApi = `127.0.0.1:${await freePort()}`;
    const waiting = await launchBroker(t, {
      JINDOU_REDIS_URL: `redis://127.0.0.1:${await freePort()}`,
      JINDOU_API_LISTEN: waitingApi,
    });
    while (!waiting.output().includes("The node waits for its store"))
      await once(waiting.process.stdout ?? waiting.process, "data");
    const silent = createTcpServer((socket) => socket.destroy()).listen(0, "127.0.0.1");
    t.teardown(() => silent.close());
    await once(silent, "listening");
    const silentPort = (silent.address() as AddressInfo).port;
    const api = `--api=http://127.0.0.1:${broker.apiPort}`;
    const client = `--client=ws://127.0.0.1:${await freePort()}`;
    const cases: readonly [readonly string[], number, RegExp, Settings?][] = [
      [["health", `--api=127.0.0.1:${await freePort()}`], 3, /Nothing listens on/],
      [["health", `--api=http://127.0.0.1:${silentPort}`], 3, /closed the connection/],
      [["health", `--api=https://127.0.0.1:${broker.apiPort}`], 3, /does not use TLS/],
      [["health", `--api=${await startOther(t, 200, "<html>")}`], 3, /is not the API of Jindou/],
      [["health", `--api=${await startOther(t, 404, "{}")}`], 3, /not the API of Jindou/],
      [["health", `--api=${waitingApi}`], 1, /not ready: The node waits for its store/],
      [["token", api, "alice"], 1, /needs a credential\. Set JINDOU_API_TOKEN/],
      [["token", api, "alice"], 1, /rejects the token/, { JINDOU_API_TOKEN: "another-token" }],
      [["token", api], 2, /Name the user/],
      [["token", api, "a@b"], 1, /uid/, { JINDOU_API_TOKEN: SECRET }],
      [["token", api, "alice", "--device=watch"], 2, /--device must be app, web or desktop/],
      [["token", api, `--token=${SECRET}`, "alice"], 2, /other users .* command lines/],
      [["token", `--api=http://u:${SECRET}@127.0.0.1`, "alice"], 2, /other users .* command lines/],
      [["send", api, "--from=bob", "hello"], 2, /--to=<uid> or --group=<id>/],
      [["send", api, "--from=bob", "--to=a", "--group=b", "hello"], 2, /--to=<uid> or --group/],
      [["send", api, "--to=alice", "hello"], 2, /--from=<uid>/],
      [["send", api, "--from", "--to=alice", "hello"], 2, /--from needs a value/],
      [["send", api, "--form=bob", "hello"], 2, /did you mean --from\?/],
      [["send", api, "--from=bob", "--to=alice", "two", "words"], 2, /quotes/],
      [["history", api, "--with=bob"], 2, /--user=<uid>/],
      [["history", api, "--group=lobby", "--limit=0"], 2, /--limit must be .* 1 to 500/],
      [["history", api, "--group=lobby", "--json=yes"], 2, /--json takes no value/],
      [["watch", api, client, "alice"], 3, /No node accepts clients/, { JINDOU_API_TOKEN: SECRET }],
      [["health", "--api=ftp://host"], 2, /--api must be a URL/],
      [["health"], 2, /JINDOU_API_LISTN.*did you mean/, { JINDOU_API_LISTN: "x" }],
    ];
    const exits = await Promise.all(cases.map(([argv, , , env = {}]) => jindou(t, argv, { env })));
    for (const [index, { code, stdout, stderr }] of exits.entries()) {
      const [argv = [], exitCode, pattern = /./] = cases[index] ?? [];
      const name = argv.filter((argument) => argument !== api).join(" ");
      t.equal(code, exitCode, name);
      t.match(stderr, pattern, name);
      t.match(stderr, /^jindou: [^\n]+[.?]\n$/, `standard error has one line: ${name}`);
      t.equal(stdout, "", `standard output is empty: ${name}`);
      t.notMatch(stderr, new RegExp(SECRET), "the secret is not shown");
    }
  },
);

t.test("`jindou events on` turns on the event feed of a stopped node", async (t) => {
  const broker = await spawnBroker(t);
  const { dataPath } = broker;
  const listen = `127.0.0.1:${await freePort()}`;
  const env = { JINDOU_STORE_PATH: dataPath, JINDOU_API_LISTEN: listen };
  const refused = await jindou(t, ["events", "on"], { env });
  t.match(refused, { code: 1, stderr: /in use|another/ }, "a node uses the folder");
  await broker.terminate();
  const switched = { code: 0, stdout: /^The event feed is on\. Cursor: e/ };
  t.match(await jindou(t, ["events", "on"], { env }), switched);
  const named = ["events", "off", `--api=${listen}`];
  t.match(await jindou(t, named, { env }), { code: 3 }, "with --api, only a node is called");
  const missing = { ...env, JINDOU_STORE_PATH: join(dataPath, "missing") };
  t.match(await jindou(t, ["events", "on"], { env: missing }), { code: 3 }, "there is no folder");
  const restarted = await spawnBroker(t, {}, dataPath);
  t.equal((await restarted.call("/events")).status, 200, "the feed is on");
});
