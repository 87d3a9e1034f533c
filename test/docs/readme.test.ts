// Tests of the README: its tour is pasted into shells, in a fresh copy of the project, and must
// print what the README says. Only the ports differ, so that the test does not collide with other
// processes.

import t, { type Test } from "tap";
import { freshCopy } from "../support/fresh-copy.ts";
import { freePort } from "../support/redis.ts";
import { blocks, namedRows, readPage, section } from "./pages.ts";
import { openTerminal, type Terminal } from "./terminal.ts";

const README = readPage("README.md");
const TOUR = "## A tour in five minutes";

/** Waits until the broker in the terminal is ready, and returns the id of its process. */
async function untilReady(terminal: Terminal): Promise<number> {
  const [line] = await terminal.untilShown(/^\{.*"msg":"The node is ready"\}$/m);
  return JSON.parse(line).pid;
}

/** The tour builds the project and starts it twice, which takes seconds on an idle machine. */
const LONG = { timeout: 900_000 };

/** Time at the beginning of a line of `jindou`. */
const TIME = String.raw`\d\d:\d\d:\d\d`;

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
  const api = `127.0.0.1:${await freePort()}`;
  const ports = { JINDOU_API_LISTEN: api, JINDOU_CLIENT_LISTEN: `127.0.0.1:${await freePort()}` };
  const first = openTerminal(t, folder, ports);
  first.type(start);
  const pid = await untilReady(first);

  const backend = openTerminal(t, folder, ports);
  const ok = '{"status":"ok"}';
  t.equal(await backend.run(register.replaceAll("127.0.0.1:5001", api)), [ok, ok, ok].join("\n"));

  const alice = openTerminal(t, folder, ports);
  alice.type(client);
  await alice.untilShown(/^Connected to ws:\S+ as alice\. Stop with Ctrl-C\.$/m);

  const sent = await backend.run(send);
  t.match(JSON.parse(sent), { message_seq: 1, client_msg_no: "first" });
  const expectedText = /`(lobby #1 bob: .*)`\./.exec(README)?.[1] ?? "not in the README";
  await alice.untilShown(new RegExp(`^${TIME} lobby #1 .*$`, "m"));
  t.equal(await backend.run(send), sent, "a retry has the same response");

  const [status = "", history = ""] = (await backend.run(inspect)).split("\n");
  t.match(JSON.parse(status), [
    { uid: "alice", online: 1 },
    { uid: "bob", online: 0 },
  ]);
  t.match(history, new RegExp(`^${TIME} ${expectedText}$`));
  await checkStream(t, { backend, alice, block: stream });
  t.match(await backend.run(metrics), /^jindou_messages_accepted_total/m);
  t.same(
    alice.screen().match(/lobby #1 .*$/gm),
    [expectedText],
    "the client prints the message once",
  );

  process.kill(pid, "SIGKILL");
  await alice.untilShown(/^The connection is lost\. Reconnecting until it is back\.$/m);
  const second = openTerminal(t, folder, ports);
  second.type(start);
  await untilReady(second);
  await alice.untilShown(/^Connected again\.$/m);
  const lines = (await backend.run("jindou history --group=lobby")).split("\n");
  t.equal(lines[0], history, "the message is stored after the kill");
  t.match(lines[1], /#2 bob: It is a quarter past\. \(stream closed\)$/);
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
  await tour.alice.untilShown(/ writes: .*a quarter past\.$/m);
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
  t.equal(shownDefault("JINDOU_LOG_FORMAT"), `\`${defaults.log.format}\``);
});
