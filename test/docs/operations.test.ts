// Tests of `docs/operations.md`: a backup and a lost password, handled as the page describes.

import { cp } from "node:fs/promises";
import { join } from "node:path";
import t from "tap";
import { startBroker, tempFolder, textPayload } from "../support/broker.ts";

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

t.test("a configured password replaces the generated password", async (t) => {
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
