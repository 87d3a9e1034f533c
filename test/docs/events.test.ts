// Tests of docs/events.md: its commands run against the node that they start, and print what the
// page says. Only the ports differ.

import { symlink } from "node:fs/promises";
import { join } from "node:path";
import t from "tap";
import { tempFolder } from "../support/broker.ts";
import { freePort } from "../support/redis.ts";
import { blocks, ROOT, readPage } from "./pages.ts";
import { openTerminal } from "./terminal.ts";

t.test("docs/events.md's commands turn the event feed on, read it and follow it", async (t) => {
  const folder = await tempFolder(t);
  for (const name of ["dist", "node_modules"]) await symlink(join(ROOT, name), join(folder, name));
  const [api, client] = [await freePort(), await freePort()];
  const shell = openTerminal(t, folder, {
    ...{ JINDOU_API_LISTEN: `127.0.0.1:${api}`, JINDOU_CLIENT_LISTEN: `127.0.0.1:${client}` },
  });
  const commands = blocks(readPage("docs/events.md")).filter(({ language }) => language === "sh");
  const outputs: string[] = [];
  for (const { text } of commands)
    outputs.push(await shell.run(text.replaceAll(":5001", `:${api}`)));
  const [started = "", first = "", second = "", empty = "", followed = ""] = outputs;
  t.match(started, /The event feed is on\. Cursor: e/);
  t.match(first, /"type":"message\.stored".*"message_seq":1,.*"channel_key":"2:lobby"/);
  t.match(second, /"events":\[\{[^[\]]*"message_seq":2,[^[\]]*\}\],"cursor":"e[\w-]+","more":0\}/);
  t.match(empty, /\{"events":\[\],"cursor":"e[\w-]+","more":0\}/);
  const ids = [...followed.matchAll(/^id: (e[\w-]+)\nevent: message\.stored\ndata: \{/gm)];
  t.equal(ids.length, 2, followed);
});
