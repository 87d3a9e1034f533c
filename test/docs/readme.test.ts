// Tests of the README: its tour is pasted into shells, in a fresh copy of the project, and must
// print what the README says. Only the ports differ, so that the test does not collide with other
// processes.

import t, { type Test } from "tap";
import { freshCopy } from "../support/fresh-copy.ts";
import { blocks, namedRows, readPage, section } from "./pages.ts";
import { openTerminal, type Terminal } from "./terminal.ts";

const README = readPage("README.md");
const TOUR = "## A tour in five minutes";

/** A broker that the tour started. */
interface RunningBroker {
  readonly pid: number;
  /** Returns the block with the ports of this broker. */
  withPorts(block: string): string;
}

/** Waits until the broker in the terminal is ready. */
async function untilReady(terminal: Terminal): Promise<RunningBroker> {
  const [line] = await terminal.untilShown(/^\{.*"msg":"The node is ready"\}$/m);
  const { pid, apiPort, clientPort } = JSON.parse(line);
  return {
    pid,
    withPorts: (block) =>
      block
        .replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`)
        .replaceAll("127.0.0.1:5200", `127.0.0.1:${clientPort}`),
  };
}

/** The tour builds the project and starts it twice, which takes seconds on an idle machine. */
const LONG = { timeout: 900_000 };

const PORTS = {
  JINDOU_API_LISTEN: "127.0.0.1:0",
  JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
};

t.test("the tour of the README prints what the README says", LONG, async (t) => {
  const shell = blocks(README).filter(({ language }) => language === "sh");
  const [start = "", test] = shell.map(({ text }) => text);
  t.same(
    [start, test],
    ["npm start", "npm test"],
    "the README begins with the commands for the start and the tests",
  );
  const tour = blocks(section(README, TOUR)).map(({ text }) => text);
  t.equal(tour.length, 6, "the tour has six blocks");
  const [register = "", client = "", send = "", inspect = ""] = tour;
  const [stream = "", metrics = ""] = tour.slice(4);

  const folder = await freshCopy(t);
  const first = openTerminal(t, folder, PORTS);
  first.type(start);
  const { pid, withPorts } = await untilReady(first);

  const backend = openTerminal(t, folder);
  const ok = '{"status":"ok"}';
  t.equal(await backend.run(withPorts(register)), [ok, ok, ok].join("\n"));

  const alice = openTerminal(t, folder);
  alice.type(withPorts(client));
  await alice.untilShown(/^connected, session \S+$/m);

  const sent = await backend.run(withPorts(send));
  t.match(JSON.parse(sent), { message_seq: 1, client_msg_no: "first" });
  const expectedLine = /`(bob in lobby, .*)`\./.exec(README)?.[1] ?? "not in the README";
  await alice.untilShown(/^bob in .*$/m);
  t.equal(await backend.run(withPorts(send)), sent, "a retry has the same response");

  const [status = "", history = ""] = (await backend.run(withPorts(inspect))).split("\n");
  t.match(JSON.parse(status), [
    { uid: "alice", online: 1 },
    { uid: "bob", online: 0 },
  ]);
  t.match(JSON.parse(history), { head_seq: 1, messages: { length: 1 } });
  await checkStream(t, { backend, alice, block: withPorts(stream) });
  t.match(await backend.run(withPorts(metrics)), /^jindou_messages_accepted_total/m);
  t.same(
    alice.screen().match(/^bob in .*hello.*$/gm),
    [expectedLine],
    "the client prints the message once",
  );

  process.kill(pid, "SIGKILL");
  await alice.untilShown(/^closed: 1006/m);
  const second = openTerminal(t, folder, PORTS);
  second.type(start);
  const restarted = await untilReady(second);
  const historyAfterRestart = (await backend.run(restarted.withPorts(inspect))).split("\n").at(-1);
  const { messages } = JSON.parse(historyAfterRestart ?? "");
  t.same(messages[0], JSON.parse(history).messages[0], "the message is stored after the kill");
  const closedStream = { state: "closed", text: "It is a quarter past." };
  t.match(messages[1].stream, closedStream, "the stream is stored after the kill");
});

/** Runs the stream of the tour, and checks it in the terminals of the backend and of Alice. */
async function checkStream(
  t: Test,
  tour: { backend: Terminal; alice: Terminal; block: string },
): Promise<void> {
  const lines = (await tour.backend.run(tour.block)).split("\n");
  const [first = "", , , read = ""] = lines;
  t.ok(README.includes(first), "the README shows the first line of the output");
  t.match(JSON.parse(read), { text: "It is a quarter past." });
  t.match(lines.at(-1), /"closed"/);
  await tour.alice.untilShown(/^bob ___TextMessageContent a quarter past\.$/m);
}

t.test("the README describes every dependency", async (t) => {
  const { dependencies, devDependencies } = JSON.parse(readPage("package.json"));
  const text = section(README, "## Dependencies");
  const named = [...text.matchAll(/^\| \[`?([^`\]]+)`?\]/gm)];
  t.same(named.map(([, name]) => name).sort(), Object.keys(dependencies).sort());
  for (const name of Object.keys(devDependencies))
    if (!name.startsWith("@types/"))
      t.ok(text.includes(`[\`${name}\`]`), `the README describes ${name}`);
});

t.test("the defaults in the README equal the defaults in config/default.json", async (t) => {
  const defaults = JSON.parse(readPage("config/default.json"));
  const rows = namedRows(section(README, "## Configuration"));
  const shownDefault = (name: string) => rows.get(name)?.[0];
  t.equal(shownDefault("JINDOU_API_LISTEN"), `\`${defaults.api.listen}\``);
  t.equal(shownDefault("JINDOU_CLIENT_LISTEN"), `\`${defaults.client.listen}\``);
  t.equal(shownDefault("JINDOU_STORE_PATH"), `\`${defaults.store.path}\``);
  t.equal(shownDefault("JINDOU_STORE_DURABILITY"), `\`${defaults.store.durability}\``);
});
