// The README as a newcomer uses it: its tour is pasted into shells, in a fresh copy of the project,
// and has to show what it says. Only the ports are other ones, so that nothing collides.

import t, { type Test } from "tap";
import { freshCopy } from "../support/fresh-copy.ts";
import { blocks, namedRows, readPage, section } from "./pages.ts";
import { openTerminal, type Terminal } from "./terminal.ts";

const README = readPage("README.md");
const TOUR = "## A tour in five minutes";

interface Started {
  readonly pid: number;
  /** `block` for the ports this broker got. */
  here(block: string): string;
}

async function ready(terminal: Terminal): Promise<Started> {
  const [line] = await terminal.shows(/^\{.*"msg":"The node is ready"\}$/m);
  const { pid, apiPort, clientPort } = JSON.parse(line);
  return {
    pid,
    here: (block) =>
      block
        .replaceAll("127.0.0.1:5001", `127.0.0.1:${apiPort}`)
        .replaceAll("127.0.0.1:5200", `127.0.0.1:${clientPort}`),
  };
}

/** It builds the project and starts it twice: seconds on a free machine. */
const LONG = { timeout: 900_000 };

const PORTS = {
  JINDOU_API_LISTEN: "127.0.0.1:0",
  JINDOU_CLIENT_LISTEN: "127.0.0.1:0",
};

t.test("the tour shows what it says, line by line", LONG, async (t) => {
  const shell = blocks(README).filter(({ language }) => language === "sh");
  const [start = "", test] = shell.map(({ text }) => text);
  t.same([start, test], ["npm start", "npm test"], "the two commands at the top");
  const tour = blocks(section(README, TOUR)).map(({ text }) => text);
  t.equal(tour.length, 6);
  const [register = "", client = "", send = "", look = ""] = tour;
  const [stream = "", metrics = ""] = tour.slice(4);

  const folder = await freshCopy(t);
  const first = openTerminal(t, folder, PORTS);
  first.type(start);
  const { pid, here } = await ready(first);

  const backend = openTerminal(t, folder);
  const ok = '{"status":"ok"}';
  t.equal(await backend.run(here(register)), [ok, ok, ok].join("\n"));

  const alice = openTerminal(t, folder);
  alice.type(here(client));
  await alice.shows(/^connected, session \S+$/m);

  const sent = await backend.run(here(send));
  t.match(JSON.parse(sent), { message_seq: 1, client_msg_no: "first" });
  const shown = /`(bob in lobby, .*)`\./.exec(README)?.[1] ?? "not in the README";
  await alice.shows(/^bob in .*$/m);
  t.equal(await backend.run(here(send)), sent, "a retry has the same answer");

  const [status = "", history = ""] = (await backend.run(here(look))).split("\n");
  t.match(JSON.parse(status), [
    { uid: "alice", online: 1 },
    { uid: "bob", online: 0 },
  ]);
  t.match(JSON.parse(history), { head_seq: 1, messages: { length: 1 } });
  await streamShows(t, { backend, alice, block: here(stream) });
  t.match(await backend.run(here(metrics)), /^jindou_messages_accepted_total/m);
  t.same(alice.screen().match(/^bob in .*hello.*$/gm), [shown], "shown once, as promised");

  process.kill(pid, "SIGKILL");
  await alice.shows(/^closed: 1006/m);
  const again = openTerminal(t, folder, PORTS);
  again.type(start);
  const restarted = await ready(again);
  const kept = (await backend.run(restarted.here(look))).split("\n").at(-1);
  const { messages } = JSON.parse(kept ?? "");
  t.same(messages[0], JSON.parse(history).messages[0], "the message is there");
  const answer = { state: "closed", text: "It is a quarter past." };
  t.match(messages[1].stream, answer, "and so is the stream");
});

/** The stream of the tour, in the backend's terminal and in Alice's. */
async function streamShows(
  t: Test,
  tour: { backend: Terminal; alice: Terminal; block: string },
): Promise<void> {
  const lines = (await tour.backend.run(tour.block)).split("\n");
  const [first = "", , , read = ""] = lines;
  t.ok(README.includes(first), "the state that the README shows");
  t.match(JSON.parse(read), { text: "It is a quarter past." });
  t.match(lines.at(-1), /"closed"/);
  await tour.alice.shows(/^bob ___TextMessageContent a quarter past\.$/m);
}

t.test("every dependency has its sentence and licence", async (t) => {
  const { dependencies, devDependencies } = JSON.parse(readPage("package.json"));
  const text = section(README, "## Dependencies");
  const named = [...text.matchAll(/^\| \[`?([^`\]]+)`?\]/gm)];
  t.same(named.map(([, name]) => name).sort(), Object.keys(dependencies).sort());
  for (const name of Object.keys(devDependencies))
    if (!name.startsWith("@types/")) t.ok(text.includes(`[\`${name}\`]`), name);
});

t.test("the default addresses in the README are the defaults", async (t) => {
  const defaults = JSON.parse(readPage("config/default.json"));
  const rows = namedRows(section(README, "## Configuration"));
  const shown = (name: string) => rows.get(name)?.[0];
  t.equal(shown("JINDOU_API_LISTEN"), `\`${defaults.api.listen}\``);
  t.equal(shown("JINDOU_CLIENT_LISTEN"), `\`${defaults.client.listen}\``);
  t.equal(shown("JINDOU_STORE_PATH"), `\`${defaults.store.path}\``);
  t.equal(shown("JINDOU_STORE_DURABILITY"), `\`${defaults.store.durability}\``);
});
