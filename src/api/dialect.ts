// What a dialect of the control plane decides, at the edge only: the rows of the table, what bodies
// mean, and the shape of every reply. `jindou` is the table as it is. State: none.

import type { TSchema } from "typebox";
import type { ErrorCode } from "../broker/errors.ts";
import type { HttpReply } from "../transport/types.ts";
import type { Adapt } from "./body.ts";
import { HTTP_STATUS } from "./errors.ts";
import { errorBody } from "./reply-schemas.ts";
import type { ApiRoute } from "./route.ts";

export interface Dialect {
  /** The rows in place of those of the table. */
  rows(table: readonly ApiRoute[]): readonly ApiRoute[];
  /** Applied to the body of each call of the row; undefined: bodies stay as they are. */
  adaptOf(row: ApiRoute): Adapt | undefined;
  /** The reply as the caller gets it; `row` undefined: the call reached none. */
  reply(reply: HttpReply, row?: ApiRoute): HttpReply;
  /** Of every error. */
  readonly errorBody: TSchema;
  /** The HTTP status of an error code. */
  statusOf(code: ErrorCode): number;
}

/** The interface as specified. */
export const JINDOU: Dialect = {
  rows: (table) => table,
  adaptOf: () => undefined,
  reply: (reply) => reply,
  errorBody,
  statusOf: (code) => HTTP_STATUS[code],
};
