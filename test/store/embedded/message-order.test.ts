// What the embedded store promises of message ids beyond the contract: one counter serves all
// channels.

import type { MessageDraft } from "../../../src/broker/ports.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { t } from "../../support/suite.ts";
import { crashedCopy, openStore, testFolder } from "./folder.ts";

t.test(
  "message ids grow from channel to channel, also over a restart and with a clock that goes back",
  async (t) => {
    const folder = testFolder(t);
    let nowMs = Date.UTC(2026, 0, 1);
    const open = () => openStore(t, folder, { clock: () => nowMs });
    let store = await open();
    const reopen = async () => {
      await store.close();
      store = await open();
    };
    const take = async (over?: Partial<MessageDraft>) =>
      (await store.append(draftOf(over))).messageId;
    const unstored = { header: { noPersist: true, redDot: false } };
    const ids = [await take(), await take({ channel: { id: "h", type: 2 } })];
    nowMs -= 3_600_000;
    ids.push(await take(), await take(unstored));
    await reopen();
    nowMs -= 3_600_000;
    ids.push(await take(unstored), await take(), await take(unstored));
    await reopen();
    ids.push(await take());
    t.same(
      ids,
      [...new Set(ids)].sort((a, b) => a - b),
    );
  },
);

t.test("the id of a message that is not stored does not come again after a crash", async (t) => {
  let nowMs = Date.UTC(2026, 0, 1);
  const clock = () => nowMs;
  let path = testFolder(t);
  const unstored = draftOf({ header: { noPersist: true, redDot: false } });
  let last = 0;
  for (let life = 0; life < 3; life++) {
    const store = await openStore(t, path, { clock });
    for (let i = 0; i < 3; i++) {
      const { messageId } = await store.append(unstored);
      t.ok(messageId > last, "greater than all before");
      last = messageId;
    }
    path = await crashedCopy(t, path);
    nowMs -= 3_600_000; // the system's clock was set back meanwhile
  }
});
