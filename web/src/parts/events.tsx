/** Events, newest first. */

import type { Event } from "../api/types";
import { jobLink } from "../lib/route";
import { moment } from "../lib/format";
import { clock, line } from "../state/live";
import { Dot, Empty } from "./small";

const LOUD = new Set(["failed", "alarm", "restarting"]);

export function Events({ items, named = false, most = 100 }: { items: readonly Event[]; named?: boolean; most?: number }) {
  if (items.length === 0) return <Empty title="No events yet" />;
  const shown = items.slice(-most).reverse();
  return (
    <ol class="events" aria-label="events, newest first">
      {shown.map((event) => (
        <li key={event.id} class={LOUD.has(event.kind) ? "is-loud" : ""}>
          <time dateTime={new Date(event.t * 1000).toISOString()}>{moment(event.t, clock.peek())}</time>
          <span class="kind">{event.kind}</span>
          <span class="event-text">
            {named && event.job && (
              <a href={jobLink(event.job)}>
                <Dot job={event.job} /> {line(event.job)?.value.name ?? event.job}
              </a>
            )}{" "}
            {event.text}
          </span>
        </li>
      ))}
    </ol>
  );
}
