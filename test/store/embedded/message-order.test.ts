// Guarantees of the embedded store about message ids in addition to the contract: all channels
// share one counter.

import type { MessageDraft } from "../../../src/broker/ports.ts";
import { draftOf } from "../../contract/store-fixture.ts";
import { t } from "../../support/suite.ts";
import { crashedCopy, openStore, testFolder } from "./folder.ts";

t.test(
  "message ids grow across channels, even after a restart or if the clock is set back",
  async (t) => {
    const folder = testFolder(t);
    let nowMs = Date.UTC(2026, 0, 1);
    const open = () => openStore(t, folder, { clock: () => nowMs });
    let store = await open();
    const reopen = async () => {
      await store.close();
      store = await open();
    };
    const sendAndGetId = async (over?: Partial<MessageDraft>) =>
      (await store.append(draftOf(over))).messageId;
    const unstored = { header: { noPersist: true, redDot: false } };
    const ids = [await sendAndGetId(), await sendAndGetId({ channel: { id: "h", type: 2 } })];
    nowMs -= 3_600_000;
    ids.push(await sendAndGetId(), await sendAndGetId(unstored));
    await reopen();
    nowMs -= 3_600_000;
    ids.push(await sendAndGetId(unstored), await sendAndGetId(), await sendAndGetId(unstored));
    await reopen();
    ids.push(await sendAndGetId());
    t.same(
      ids,
      [...new Set(ids)].sort((a, b) => a - b),
    );
  },
);

t.test("the id of a message that is not stored is not used again after a crash", async (t) => {
  let nowMs = Date.UTC(2026, 0, 1);
  const clock = () => nowMs;
  let path = testFolder(t);
  const unstored = draftOf({ header: { noPersist: true, redDot: false } });
  let last = 0;
  for (let run = 0; run < 3; run++) {
    const store = await openStore(t, path, { clock });
    for (let i = 0; i < 3; i++) {
      const { messageId } = await store.append(unstored);
      t.ok(messageId > last, "the id is higher than all earlier ones");
      last = messageId;
    }
    path = await crashedCopy(t, path);
    nowMs -= 3_600_000; // the clock of the system was set back in the meantime
  }
});
