// Tests of the README and of `docs/tour.md`: their commands are pasted into shells, in one fresh
// copy of the project, and must print what the pages say. Only the ports differ, so that the test
// does not collide with other processes.

import t, { type Test } from "tap";
import { freshCopy } from "../support/fresh-copy.ts";
import { freePort } from "../support/redis.ts";
import { blocks, namedRows, readPage, section } from "./pages.ts";
import { openTerminal, type Terminal } from "./terminal.ts";

const README = readPage("README.md");
const TOUR = readPage("docs/tour.md");

/** Waits until the broker in the terminal is ready, and returns the id of its process. */
async function untilReady(terminal: Terminal): Promise<number> {
  const [line] = await terminal.untilShown(/^\{.*"msg":"The node is ready"\}$/m);
  return JSON.parse(line).pid;
}

/**
 * Options of a test that builds the project and starts it twice. This takes seconds on an idle
 * machine and minutes on a busy one.
 */
const LONG = { timeout: 900_000 };

/** Returns the blocks of the page that are pasted into a shell. */
function shellBlocks(page: string): readonly string[] {
  return blocks(page)
    .filter(({ language }) => language === "sh")
    .map(({ text }) => text);
}

/** Pattern of the time at the beginning of a line that `jindou` prints. */
const TIME = String.raw`\d\d:\d\d:\d\d`;

t.test("the commands of the README and of the tour print what the pages say", LONG, async (t) => {
  const [start = "", test, registerAnn = "", ann = "", sendToAnn = ""] = shellBlocks(README);
  t.same(
    [start, test],
    ["npm start", "npm test"],
    "the README begins with the commands for the start and the tests",
  );
  const tour = shellBlocks(TOUR);
  t.equal(tour.length, 6, "the tour has six blocks");
  const [register = "", client = "", send = "", inspect = ""] = tour;
  const [stream = "", metrics = ""] = tour.slice(4);

  const folder = await freshCopy(t);
  const api = `127.0.0.1:${await freePort()}`;
  const clientListen = `127.0.0.1:${await freePort()}`;
  const ports = { JINDOU_API_LISTEN: api, JINDOU_CLIENT_LISTEN: clientListen };
  const first = openTerminal(t, folder, ports);
  first.type(start);
  const pid = await untilReady(first);

  const backend = openTerminal(t, folder, ports);
  const ok = '{"status":"ok"}';
  const hello = await backend.run(registerAnn.replaceAll("127.0.0.1:5001", api));
  t.equal(hello, [ok, ok].join("\n"));
  const app = openTerminal(t, folder, ports);
  app.type(ann.replaceAll("127.0.0.1:5200", clientListen));
  await app.untilShown(/^Ann's message has the seq 1$/m);
  const sentToAnn = await backend.run(sendToAnn);
  t.match(JSON.parse(sentToAnn), { message_seq: 2, client_msg_no: "first" });
  await app.untilShown(/^ben: hello$/m);
  const retryToAnn = JSON.parse(await backend.run(sendToAnn));
  t.same(retryToAnn, { ...JSON.parse(sentToAnn), repeated: 1 }, "a retry has the same ids");

  t.equal(await backend.run(register.replaceAll("127.0.0.1:5001", api)), [ok, ok, ok].join("\n"));

  const alice = openTerminal(t, folder, ports);
  alice.type(client);
  await alice.untilShown(/^Connected to ws:\S+ as alice\. Stop with Ctrl-C\.$/m);

  const sent = await backend.run(send);
  t.match(JSON.parse(sent), { message_seq: 1, client_msg_no: "first" });
  const expectedText = /`(lobby #1 bob: .*)`\./.exec(TOUR)?.[1] ?? "not on the page";
  await alice.untilShown(new RegExp(`^${TIME} lobby #1 .*$`, "m"));
  const retry = JSON.parse(await backend.run(send));
  t.same(retry, { ...JSON.parse(sent), repeated: 1 }, "a retry has the same ids");

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
  await alice.untilShown(/^The connection was lost\. Trying to reconnect\.$/m);
  const second = openTerminal(t, folder, ports);
  second.type(start);
  await untilReady(second);
  await alice.untilShown(/^Reconnected\.$/m);
  const lines = (await backend.run("jindou history --group=lobby")).split("\n");
  t.equal(lines[0], history, "the message is stored after the kill");
  t.match(lines[1], /#2 bob: It is a quarter past\. \(stream closed\)$/);

  await backend.run(sendToAnn.replace('"first"', '"after the restart"'));
  await app.untilShown(/^ben: hello\n(?:.*\n)*ben: hello$/m);
  t.equal(app.screen().match(/^ben: hello$/gm)?.length, 2, "the app prints each message once");
});

/** Runs the stream of the tour, and checks it in the terminals of the backend and of Alice. */
async function checkStream(
  t: Test,
  tour: { backend: Terminal; alice: Terminal; block: string },
): Promise<void> {
  const lines = (await tour.backend.run(tour.block)).split("\n");
  const [first = "", , , read = ""] = lines;
  t.ok(TOUR.includes(first), "the page shows the first line of the output");
  t.match(JSON.parse(read), { text: "It is a quarter past." });
  t.match(lines.at(-1), /"closed"/);
  await tour.alice.untilShown(/ writes: .*a quarter past\.$/m);
}

t.test("docs/dependencies.md describes every dependency", async (t) => {
  const { dependencies, devDependencies } = JSON.parse(readPage("package.json"));
  const text = section(readPage("docs/dependencies.md"), "## Packages");
  const named = [...text.matchAll(/^\| \[`?([^`\]]+)`?\]/gm)];
  t.same(named.map(([, name]) => name).sort(), Object.keys(dependencies).sort());
  for (const name of Object.keys(devDependencies))
    if (!name.startsWith("@types/"))
      t.ok(text.includes(`[\`${name}\`]`), `the page describes ${name}`);
});

t.test(
  "the defaults of the listeners, the store and the log format in docs/operations.md equal those in config/default.json",
  async (t) => {
    const defaults = JSON.parse(readPage("config/default.json"));
    const rows = namedRows(section(readPage("docs/operations.md"), "## Configuration"));
    const shownDefault = (name: string) => rows.get(name)?.[0];
    t.equal(shownDefault("JINDOU_API_LISTEN"), `\`${defaults.api.listen}\``);
    t.equal(shownDefault("JINDOU_CLIENT_LISTEN"), `\`${defaults.client.listen}\``);
    t.equal(shownDefault("JINDOU_STORE_PATH"), `\`${defaults.store.path}\``);
    t.equal(shownDefault("JINDOU_STORE_DURABILITY"), `\`${defaults.store.durability}\``);
    t.equal(shownDefault("JINDOU_LOG_FORMAT"), `\`${defaults.log.format}\``);
  },
);
