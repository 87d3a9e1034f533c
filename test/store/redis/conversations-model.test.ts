// Conversations on Redis agree with a plain model over random calls, in which time passes, messages
// expire, are past retention or more than a channel keeps, and are swept, users join and leave.

import t from "tap";
import { ConversationModel } from "../../contract/conversation-model.ts";
import { ConversationPair } from "../../contract/conversation-pair.ts";
import { Random } from "../../support/random.ts";
import { startRedis } from "../../support/redis.ts";
import { openConversations } from "./conversation-store.ts";

const SEED = Number(process.env.SEED ?? Date.now() % 1_000_000);
const ROUNDS = 4;
const STEPS = 120;
const RETENTION_S = 90;
const KEEPS = 7;

t.test("random calls agree with a plain model", async (t) => {
  const { url } = await startRedis(t);
  for (let round = 0; round < ROUNDS; round++) {
    const seed = SEED + round;
    const retentionS = round % 2 === 0 ? 0 : RETENTION_S;
    const maxChannelMessages = round < ROUNDS / 2 ? 0 : KEEPS;
    const limits = { retentionS, maxChannelMessages };
    t.test(`SEED=${seed}, ${JSON.stringify(limits)}`, async (t) => {
      const random = new Random(seed);
      const model = new ConversationModel(limits);
      const clock = () => model.nowMs;
      const options = { clock, ...limits };
      const { store, sweep, problems } = await openConversations(t, url, options);
      const parts = { random, model, store: () => store, tickMs: 1 };
      const clear = async () => {
        await sweep.run();
        model.sweep();
      };
      await new ConversationPair(t, parts).run(STEPS, [[6, clear]]);
      t.same(problems, []);
    });
  }
});
