// A dialect of the control plane. It may replace rows of the route table, convert request bodies
// and change the shape of replies. The `jindou` dialect changes nothing.

import type { TSchema } from "typebox";
import type { ErrorCode } from "../broker/errors.ts";
import type { HttpReply } from "../transport/types.ts";
import type { Adapt } from "./body.ts";
import { HTTP_STATUS } from "./errors.ts";
import { errorBody } from "./reply-schemas.ts";
import type { ApiRoute } from "./route.ts";

export interface Dialect {
  rows(table: readonly ApiRoute[]): readonly ApiRoute[];
  adaptOf(row: ApiRoute): Adapt | undefined;
  /** Returns the reply in this dialect. `row` is `undefined` if no route matched. */
  reply(reply: HttpReply, row?: ApiRoute): HttpReply;
  readonly errorBody: TSchema;
  statusOf(code: ErrorCode): number;
}

export const JINDOU: Dialect = {
  rows: (table) => table,
  adaptOf: () => undefined,
  reply: (reply) => reply,
  errorBody,
  statusOf: (code) => HTTP_STATUS[code],
};
