// Tests of `docs/cluster.md`: the two nodes at the beginning of the page run in a terminal.
// `test/redis/connection.test.ts` tests the rights of the Redis user, `compose.test.ts` the example
// with Docker Compose.

import t from "tap";
import { tempFolder } from "../support/broker.ts";
import { freePort } from "../support/redis.ts";
import { blocks, readPage, section } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

const PAGE = readPage("docs/cluster.md");
t.test("the two nodes of docs/cluster.md form one cluster", async (t) => {
  const folder = await tempFolder(t);
  const [start, query, stop] = blocks(section(PAGE, "## Two nodes in a minute"))
    .filter(({ language }) => language === "sh")
    .map(({ text }) => text);
  const ports = new Map<string, string>();
  for (const port of ["7000", "5001", "5002", "5200", "5201"])
    ports.set(port, `${await freePort()}`);
  const withFreePorts = (text = "") =>
    text
      .replaceAll(/\b(7000|5001|5002|5200|5201)\b/g, (port) => `${ports.get(port)}`)
      .replaceAll("dist/main.js", `${process.cwd()}/dist/main.js`);
  const terminal = openTerminal(t, folder);
  await terminal.run(withFreePorts(start));
  const lines = (await terminal.run(withFreePorts(query))).split("\n");
  const [registered, status, sent, repeated, nodes, memory] = lines;
  t.equal(registered, '{"status":"ok"}');
  t.match(JSON.parse(status ?? ""), [{ uid: "bob", online: 0 }]);
  t.match(JSON.parse(sent ?? ""), { message_seq: 1, client_msg_no: "one" });
  t.same(
    JSON.parse(repeated ?? ""),
    { ...JSON.parse(sent ?? ""), repeated: 1 },
    "the repeated send has the ids of the first",
  );
  t.equal(nodes, "2", "the cluster has two nodes");
  t.match(memory, /^used_memory_human:\d/);
  await terminal.run(withFreePorts(stop));
});
