// Tests of `docs/operations.md`: a backup and a lost password, handled as the page describes, and
// the systemd unit.

import { cp } from "node:fs/promises";
import { join } from "node:path";
import t from "tap";
import { loadConfig } from "../../src/config/load.ts";
import { startBroker, tempFolder, textPayload } from "../support/broker.ts";
import { blocks, readPage } from "./pages.ts";

t.test("a copy of a stopped broker's data folder can be used as a backup", async (t) => {
  const broker = await startBroker(t);
  await broker.call("/channel", {
    channel_id: "lobby",
    channel_type: 2,
    subscribers: ["bob"],
  });
  const message = {
    from_uid: "bob",
    channel_id: "lobby",
    channel_type: 2,
    payload: textPayload("kept"),
  };
  await broker.call("/message/send", message);
  const history = "/channel/messages?channel_id=lobby&channel_type=2";
  const before = (await broker.call(history)).body;
  await broker.close();

  const backup = join(await tempFolder(t), "backup");
  await cp(broker.dataPath, backup, { recursive: true });
  const restored = await startBroker(t, {}, backup);
  t.equal(before.messages.length, 1, "the message was stored before the backup");
  t.same((await restored.call(history)).body, before, "the restored broker has the message");
  const sent = await restored.call("/message/send", message);
  t.equal(sent.body.message_seq, 2, "the restored broker has the members and the newest seq");
});

t.test("a configured password of the manager admin replaces the generated password", async (t) => {
  const first = await startBroker(t);
  const [generated] = first.passwords;
  await first.close();
  const settings = { JINDOU_ADMIN_PASSWORD: "correct horse" };
  const second = await startBroker(t, settings, first.dataPath);
  const login = async (password: string | undefined) =>
    (await second.call("/manager/login", { username: "admin", password })).status;
  t.equal(await login("correct horse"), 200, "the configured password is accepted");
  t.equal(await login(generated), 401, "the generated password is rejected");
});

t.test(
  "the systemd unit restarts a failed node without limiting the number of starts",
  async (t) => {
    const { text = "" } =
      blocks(readPage("docs/operations.md")).find(({ language }) => language === "ini") ?? {};
    const [unit = "", service = ""] = text.split("[Service]");
    t.match(unit, /^StartLimitIntervalSec=0$/m);
    t.match(service, /^Restart=on-failure$/m);
    t.match(service, /^RestartSec=[1-9]\d*$/m);
    const { drain } = loadConfig();
    const stopS = Number(/^TimeoutStopSec=(\d+)$/m.exec(service)?.[1]);
    t.ok(stopS * 1000 > drain.noticeMs + drain.timeoutMs + 5000, "systemd waits for the drain");
  },
);
