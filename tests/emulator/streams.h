// Streams, events and graphs of emulated GPUs: each stream is a thread of the process that does what is put into it.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

using Work = std::function<void()>;
struct Stream;
struct Event;
struct Graph;

// As the driver numbers them.
enum Status { SUCCESS = 0, INVALID_VALUE = 1, NOT_PERMITTED = 800, NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904, CAPTURE_ISOLATION = 905, CAPTURED_EVENT = 907 };

Stream* make_stream(int device);
// What is in it is still done. Its address is never that of another one.
void end_stream(Stream* stream);
// Whether it is one that has not ended.
bool is_stream(Stream* stream);
// Does it in the stream's order, or makes it part of the graph that is being captured.
Status put(Stream* stream, Work work);
// Waits until all is done that was put into it; an error while it is captured.
Status wait_for(Stream* stream);
// The same for all streams of a device, those that were ended, too.
Status wait_for_streams_of(int device);

Event* make_event();
void end_event(Event* event);
Status record(Event* event, Stream* stream);
Status wait_for(Stream* stream, Event* event);
Status wait_for(Event* event);
// Milliseconds between two that have happened.
float milliseconds(const Event* start, const Event* end);

Status begin_capture(Stream* stream);
Status end_capture(Stream* stream, Graph*& graph);
// The number of the capture that the stream is part of; 0: none.
uint64_t capture_of(Stream* stream);
Graph* copy_of(const Graph* graph);
void end_graph(Graph* graph);
Status launch(const Graph* graph, Stream* stream);
